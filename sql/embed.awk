# SPDX-License-Identifier: MIT-0 OR Unlicense
# embed.awk -- print a header with the SQL between its two markers generated anew.
#
#   awk -v sum="$(cat $(SQL) | cksum)" -f sql/embed.awk sql/install.sql jobq_pg.h
#
# install.sql names the files in their order: migrations, NNN_name.sql, then the current text, of the
# version that version.sql writes. The first migration, 001, brings the version that it writes itself. A file becomes C strings of at most 4095 bytes, which is what C99
# promises, and is sent as a whole. (A string for each line would cost a pointer and a relocation
# each: 90 KB of a program's 490; one for each statement 9 KB.) Lines of comment are left out: they are
# for the reader of sql/, and were a third of the text that each program would carry. A paragraph of
# the file is a statement. On any error nothing is printed, so that the caller never stores half a
# header. reference.sql, the comments on functions, is left out of a program by JOBQ_PG_NO_COMMENTS.
#
# fingerprint.txt is left out if it is not of these files, which sum tells; the library then compares
# nothing. So a change of the SQL can be tested before `make fingerprint`, and `make verify` asks for it.

function fail(text) { print "embed.awk: " text | "cat 1>&2"; close("cat 1>&2"); failed = 1; exit 1 }

# One character at a time: awks differ in how many backslashes sub() wants. `?` could begin a
# trigraph.
function quoted(line,    i, c, text) {
    for (i = 1; i <= length(line); i++) {
        c = substr(line, i, 1)
        text = text (c == "\\" || c == "\"" || (c == "?" && line ~ /\?\?/) ? "\\" : "") c
    }
    return "\"" text "\\n\""
}

# A line joins the string before it while C99's limit allows. Of escapes only the result counts.
function add_line(line) {
    size += length(line) + 1
    block = block (size > 4095 ? ",\n" : "\n") quoted(line)
    if (size > 4095) size = length(line) + 1
}

# The statement read so far, if any; `code` is its last line that is not a comment.
function end_statement(file) {
    if (code != "" && code !~ /;[ \t]*(--.*)?$/) fail(file ": statement does not end with ';': " code)
    statements += code != ""
    code = ""
}

# The version of a migration is the number in its name, of the first one what it writes into meta; of
# a file of the current text what version.sql writes.
function add_file(file,    name, number, line, status, before) {
    name = file
    sub(/^.*\//, "", name)
    sub(/\.sql$/, "", name)
    if (name ~ /^[0-9][0-9][0-9]_/) {
        number = substr(name, 1, 3) + 0
        if (number <= newest || version) fail(file ": migrations come first, in their order")
    }
    if (name == "reference") block = block "#ifndef JOBQ_PG_NO_COMMENTS\n"
    block = block "static const char *const jobq_pg__sql_" name "[] = {"
    statements = size = 0
    while ((status = (getline line < file)) > 0) {
        if (line == "") { end_statement(file); continue }
        if (line ~ /^[ \t]*--/) continue
        if (name == "version" && match(line, /SET version = [0-9]+/))
            version = substr(line, RSTART + 14, RLENGTH - 14) + 0
        if (number == 1 && before ~ /^INSERT INTO jobq.meta/ && match(line, /^VALUES \([0-9]+/))
            number = substr(line, 9, RLENGTH - 8) + 0
        before = line
        add_line(line)
        code = line
    }
    if (status < 0) fail("cannot read " file)
    close(file)
    end_statement(file)
    if (number == 1) fail(file ": no version for meta")
    if (number) newest = number
    if (!statements) fail(file ": no statement")
    if (!number && !version) fail(file ": version.sql comes first, with `SET version = N`")
    if (newest > version && version) fail("version.sql: " newest " or more expected")
    block = block ",\n    NULL\n};\n" (name == "reference" ? "#endif\n" : "") "\n"
    if (name == "reference") list = list "#ifndef JOBQ_PG_NO_COMMENTS\n"
    list = list sprintf("    {%d, \"%s\", jobq_pg__sql_%s},\n", number ? number : version, name, name)
    if (name == "reference") list = list "#endif\n"
}

# The files that install.sql includes.
function add_files(install,    folder, line, status) {
    folder = install
    sub(/[^\/]*$/, "", folder)
    while ((status = (getline line < install)) > 0)
        if (sub(/^\\ir /, "", line)) add_file(folder line)
    if (status < 0) fail("cannot read " install)
    if (!version) fail(install ": no \\ir version.sql")
}

# A query, with which the library asks.
function add_query(file,    line, status) {
    block = block "static const char *const jobq_pg__fingerprint_query[] = {"
    size = 0
    while ((status = (getline line < file)) > 0)
        if (line !~ /^[ \t]*--/ && line != "") add_line(line)
    if (status < 0) fail("cannot read " file)
    block = block ",\n    NULL\n};\n\n"
}

# The list of names and sums: lines of KIND:NAME=SUM NAME=SUM ..., which get shorter here.
function add_list(file,    line, status, first, names, count, i, row, kind) {
    status = (getline first < file)
    block = block "static const char *const jobq_pg__fingerprint_list[] = {"
    size = 0
    while (first == sum && (status = (getline line < file)) > 0) {
        kind = row = substr(line, 1, index(line, ":"))
        count = split(substr(line, length(kind) + 1), names, " ")
        for (i = 1; i <= count; i++) {
            if (length(row names[i]) > 92) { add_line(row); row = kind }
            row = row (row == kind ? "" : " ") names[i]
        }
        add_line(row)
    }
    if (status < 0) fail("cannot read " file)
    block = block (size ? ",\n" : "\n") "    NULL\n};\n\n"
}

function print_header(file,    line, status, inside, begins, ends, text) {
    while ((status = (getline line < file)) > 0) {
        if (index(line, END_MARK) == 1) { inside = 0; ends += begins }
        if (!inside) text = text line "\n"
        if (index(line, BEGIN_MARK) == 1) {
            inside = 1
            begins++
            text = text block "static const jobq_pg__migration jobq_pg__migrations[] = {\n"
            text = text list "};\n"
        }
    }
    if (status < 0) fail("cannot read " file)
    if (begins != 1 || ends != 1)
        fail(file ": needs the line `" BEGIN_MARK "`, and after it `" END_MARK "`, each once")
    printf "%s", text
}

BEGIN {
    BEGIN_MARK = "/* >>migrations begin (generated from sql/ by make embed) */"
    END_MARK = "/* >>migrations end */"
    if (ARGC != 3) fail("usage: awk -f sql/embed.awk sql/install.sql HEADER")
    add_files(ARGV[1])
    folder = ARGV[1]
    sub(/[^\/]*$/, "", folder)
    add_query(folder "fingerprint.sql")
    add_list(folder "fingerprint.txt")
    print_header(ARGV[2])
    exit
}
END { exit failed }
