# SPDX-License-Identifier: MIT-0 OR Unlicense
# conan create . -- once conandata.yml has the address of jobq-0.2.0.tar.gz and its SHA-256 sum
from os.path import join

from conan import ConanFile
from conan.tools.files import copy, get


class Jobq(ConanFile):
    name = "jobq"
    version = "0.2.0"
    description = "A Postgres job queue and transactional outbox in two C headers"
    license = "MIT-0 OR Unlicense"
    package_type = "header-library"
    no_copy_source = True

    def source(self):
        get(self, **self.conan_data["sources"][self.version], strip_root=True)

    def package(self):
        copy(self, "*.h", self.source_folder, join(self.package_folder, "include"))
        copy(self, "*.sql", self.source_folder, join(self.package_folder, "res"))
        copy(self, "LICENSE", self.source_folder, join(self.package_folder, "licenses"))

    def package_id(self):
        self.info.clear()

    # libpq is the system's. For Conan's own, write requires = "libpq/[>=14]" above instead.
    def package_info(self):
        self.cpp_info.bindirs = self.cpp_info.libdirs = []
        self.cpp_info.resdirs = ["res"]
        self.cpp_info.system_libs = ["pq", "pthread"]
