# embed.awk -- print a header with the migrations between its two markers generated anew.
#
#   awk -f sql/embed.awk sql/001_*.sql sql/002_*.sql jobq_pg.h
#
# A file becomes C strings of at most 4095 bytes, which is what C99 promises, and is sent as a whole.
# (A string for each line would cost a pointer and a relocation each: 90 KB of a program's 490; one for
# each statement 9 KB.) Lines of comment are left out: they are for the reader of sql/, and were a third
# of the text that each program would carry. So are BEGIN and COMMIT, which are for psql: the library
# has a transaction of its own. A paragraph of the file is a statement. On any error
# nothing is printed, so that the caller never stores half a header.

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

function add_migration(file,    name, number, line, status) {
    name = file
    sub(/^.*\//, "", name)
    sub(/\.sql$/, "", name)
    number = substr(name, 1, 3) + 0
    if (number != migrations + 1) fail(file ": number " migrations + 1 " expected")
    block = block "static const char *const jobq_pg__sql_" substr(name, 1, 3) "[] = {"
    statements = size = 0
    while ((status = (getline line < file)) > 0) {
        if (line == "") { end_statement(file); continue }
        if (line ~ /^[ \t]*--/ || line == "BEGIN;" || line == "COMMIT;") continue
        add_line(line)
        code = line
    }
    if (status < 0) fail("cannot read " file)
    close(file)
    end_statement(file)
    if (!statements) fail(file ": no statement")
    block = block ",\n    NULL\n};\n\n"
    list = list sprintf("    {%d, \"%s\", jobq_pg__sql_%s},\n", number, name, substr(name, 1, 3))
    migrations++
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
    if (ARGC < 3) fail("no sql/NNN_name.sql to embed")
    for (a = 1; a < ARGC - 1; a++) add_migration(ARGV[a])
    print_header(ARGV[ARGC - 1])
    exit
}
END { exit failed }
