# vcpkg install jobq --overlay-ports=<the folder above this one>
# Write the address of jobq-0.2.0.tar.gz and its sha512sum here.
vcpkg_download_distfile(archive
  URLS "THE_ADDRESS"
  FILENAME "jobq-${VERSION}.tar.gz"
  SHA512 0)
vcpkg_extract_source_archive(source ARCHIVE "${archive}")

file(INSTALL "${source}/jobq.h" "${source}/jobq_pg.h"
  DESTINATION "${CURRENT_PACKAGES_DIR}/include")
file(INSTALL "${source}/sql" DESTINATION "${CURRENT_PACKAGES_DIR}/share/${PORT}")
vcpkg_install_copyright(FILE_LIST "${source}/LICENSE")
