#!/usr/bin/env bash
# pages.sh  checks what the pages (*.md) name
#
#   - a relative link leads to a file that is there, and its #anchor to a heading of it
#   - a page of more than two sections begins with an index: a link to each of them
#   - README.md has at most 250 lines, and no line of more than 120 columns outside tables
#   - a command is there: make TARGET, a script, a verb of the program jobq, its options
#   - a name of C or SQL is there: jobq_..., jobq.... and JOBQ_... in backquotes
#   - no sentence stands in two places
set -eu
cd "$(dirname "$0")/../.."

mapfile -t pages < <(find . -name '*.md' -not -path './.build/*' -not -path './.git/*' \
    -not -path '*/node_modules/*' | sed 's,^\./,,' | sort)
targets=$(sed -n 's/^\([a-z][a-z-]*\):.*/\1/p' Makefile | sort -u | tr '\n' ' ')
# The verbs and options of the program jobq, as its tables have them.
words=$(sed -n 's/^ *{"\([a-z -]*\)", .*/\1/p; s/.*{"\([a-z-]*\)", [N"].*/\1/p' examples/jobq/jobq.c |
    tr ' ' '\n' | sort -u | tr '\n' ' ')
names=$(cat jobq.h jobq_pg.h sql/*.sql sql/*/*.sql examples/*.hpp Makefile tests/*.sh |
    grep -ohE '(jobq[_.]|JOBQ_)[A-Za-z0-9_]+' | sort -u | tr '\n' ' ')

awk -v targets="$targets" -v words="$words" -v names="$names" '
function fail(why) { print place ": " why; bad = 1 }
function set_of(text, into,    part, n, i) {
    n = split(text, part, " ")
    for (i = 1; i <= n; i++) into[part[i]] = 1
}
function is_file(path) { return system("test -e \"" path "\"") == 0 }

# The anchor of a heading, as code hosts make it.
function slug(text) {
    gsub(/\]\([^)]*\)|[`*\[]/, "", text)
    text = tolower(text)
    gsub(/[^a-z0-9 _-]/, "", text)
    gsub(/ /, "-", text)
    return text
}

# FOLDER and a path with .. in it, in short.
function join(folder, path) {
    path = folder path
    while (sub(/[^\/]+\/\.\.\//, "", path)) ;
    return path
}

function links(text,    target, page, anchor) {
    while (match(text, /\]\([^)]*\)/)) {
        target = substr(text, RSTART + 2, RLENGTH - 3)
        text = substr(text, RSTART + RLENGTH)
        if (target ~ /^[a-z]+:/) continue
        page = anchor = target
        sub(/#.*/, "", page)
        if (!sub(/^[^#]*#/, "", anchor)) anchor = ""
        if (page == "") {
            page = FILENAME
            if (!sections[FILENAME]) linked[FILENAME, anchor] = 1
        } else {
            page = join(folder, page)
            if (!is_file(page)) { fail("no file " target); continue }
        }
        if (anchor != "") { wanted[++count] = page SUBSEP anchor; from[count] = place ": " target }
    }
}

function command(text,    word, part, n, i) {
    while (match(text, /(^|[ (])make ([A-Z_]+=[^ ]* )?[a-z][a-z-]*/)) {
        word = substr(text, RSTART, RLENGTH)
        text = substr(text, RSTART + RLENGTH)
        sub(/.* /, "", word)
        if (!(word in is_target)) fail("make has no target " word)
    }
    if (match(text, /(^|[ ;])(tests|\.ci|examples)\/[A-Za-z0-9_\/.-]*[a-z]/)) {
        word = substr(text, RSTART, RLENGTH)
        sub(/^[ ;]/, "", word)
        if (word != "examples/x.c" && !is_file(word)) fail("no file " word)
    }
    if (text !~ /^jobq [a-z]/) return
    sub(/ +#.*/, "", text)
    n = split(text, part, /[ =]+/)
    for (i = 2; i <= n; i++) {
        word = part[i]
        if (word ~ /^&&$/) { i++; continue }
        if (i > 2 && !sub(/^--/, "", word)) continue
        if (!(word in is_word)) fail("the program jobq has no " part[i])
    }
}

# What is in backquotes.
function quoted(text,    inner) {
    while (match(text, /`[^`]+`/)) {
        inner = substr(text, RSTART + 1, RLENGTH - 2)
        text = substr(text, RSTART + RLENGTH)
        command(inner)
        if (match(inner, /^(jobq[_.]|JOBQ_)[A-Za-z0-9_]+/) &&
            !(substr(inner, 1, RLENGTH) in is_name) && inner !~ /^jobq\.(hpp|py|pc|h)/ &&
            !(toupper(inner) == inner && RLENGTH < length(inner)) && inner !~ /[*]/)
            fail("no name " substr(inner, 1, RLENGTH))
    }
}

function sentences(text,    part, n, i) {
    n = split(text, part, /[.!?:] +/)
    for (i = 1; i <= n; i++) {
        if (split(part[i], dummy, " ") < 9) continue
        if (part[i] in said) fail("this is also in " said[part[i]] ": " part[i])
        said[part[i]] = place
    }
}

function paragraph_ends() { if (paragraph != "") sentences(paragraph); paragraph = "" }

function page_ends() {
    paragraph_ends()
    if (last == "README.md" && lines[last] > 250) fail("over 250 lines")
}

BEGIN { set_of(targets, is_target); set_of(words, is_word); set_of(names, is_name) }
FNR == 1 {
    page_ends()
    code = 0
    last = folder = FILENAME
    if (!sub(/[^\/]*$/, "", folder)) folder = ""
}
{ place = FILENAME ":" FNR; lines[FILENAME] = FNR }
/^```/ { paragraph_ends(); code = !code; shell = $0 ~ /^```sh/; next }
FILENAME == "README.md" && !/^\|/ && length($0) > 120 { fail("over 120 columns") }
code { if (shell) command($0); next }
/^    [^ ]/ { paragraph_ends(); command(substr($0, 5)); next }
/^#/ {
    title = $0
    sub(/^#+ /, "", title)
    heading[FILENAME, slug(title)] = 1
    if ($1 == "##") { sections[FILENAME]++; section[FILENAME, sections[FILENAME]] = slug(title) }
}
{ links($0); quoted($0) }
/^[#|]|^$/ { paragraph_ends(); next }
{ paragraph = paragraph == "" ? $0 : paragraph " " $0 }
END {
    page_ends()
    for (i = 1; i <= count; i++)
        if (!(wanted[i] in heading)) { print from[i] ": no such heading"; bad = 1 }
    for (page in sections) {
        if (sections[page] < 3) continue
        for (i = 1; i <= sections[page]; i++) {
            at = page SUBSEP section[page, i]
            if (!(at in linked)) {
                print page ": its index lacks #" section[page, i]
                bad = 1
            }
        }
    }
    exit bad
}' "${pages[@]}" >&2 || { echo "pages.sh: see the top of tests/tools/pages.sh" >&2; exit 1; }
