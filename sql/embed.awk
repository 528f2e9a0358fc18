# embed.awk -- print a header with the SQL between its two markers generated anew.
#
#   awk -f sql/embed.awk sql/install.sql jobq_pg.h
#
# install.sql names the files in their order: migrations, NNN_name.sql, then the current text, of the
# version that version.sql writes. A file becomes C strings of at most 4095 bytes, which is what C99
# promises, and is sent as a whole. (A string for each line would cost a pointer and a relocation
# each: 90 KB of a program's 490; one for each statement 9 KB.) Lines of comment are left out: they are
# for the reader of sql/, and were a third of the text that each program would carry. A paragraph of
# the file is a statement. On any error nothing is printed, so that the caller never stores half a
# header.

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

# A migration has the number in its name, a file of the current text the version.
function add_file(file,    name, number, line, status) {
    name = file
    sub(/^.*\//, "", name)
    sub(/\.sql$/, "", name)
    if (name ~ /^[0-9][0-9][0-9]_/) {
        number = substr(name, 1, 3) + 0
        if (number <= newest || version) fail(file ": migrations come first, in their order")
        newest = number
    }
    block = block "static const char *const jobq_pg__sql_" name "[] = {"
    statements = size = 0
    while ((status = (getline line < file)) > 0) {
        if (line == "") { end_statement(file); continue }
        if (line ~ /^[ \t]*--/) continue
        if (name == "version" && match(line, /SET version = [0-9]+/))
            version = substr(line, RSTART + 14, RLENGTH - 14) + 0
        add_line(line)
        code = line
    }
    if (status < 0) fail("cannot read " file)
    close(file)
    end_statement(file)
    if (!statements) fail(file ": no statement")
    if (!number && !version) fail(file ": version.sql comes first, with `SET version = N`")
    if (newest > version && version) fail("version.sql: " newest " or more expected")
    block = block ",\n    NULL\n};\n\n"
    list = list sprintf("    {%d, \"%s\", jobq_pg__sql_%s},\n", number ? number : version, name, name)
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
    print_header(ARGV[2])
    exit
}
END { exit failed }
