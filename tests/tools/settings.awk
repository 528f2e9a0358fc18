# SPDX-License-Identifier: MIT-0 OR Unlicense
# settings.awk  refuses SQL whose meaning or speed depends on what a database, a role or an argument
#               brings along; tests/harness/hostile.sh runs tests in a database that brings all of it
#
#     awk -f tests/tools/settings.awk jobq_pg.h sql/*.sql
#
#   ||         With an implicit cast from numbers to text, a number beside a text is ambiguous. So
#              each part of a chain that has a text in it must be a text by what can be seen here:
#              a literal, ::text, a variable or function of that type, a column that is called
#              name or key. Or use format().
#   backslash  In a plain literal it means something else without standard_conforming_strings. Use
#              [0-9], [[:space:]] or E'', or let the function set it.
#   time       As text it depends on DateStyle and TimeZone, an interval on IntervalStyle. to_char()
#              does not, nor do shown() and rate_text().
#   collation  Arguments have the collation of what the caller passed, and so have all variables of
#              the function. Beside a column, before ~ and LIKE they need COLLATE "C".
#   jit        The planner may take a statement for dear. Compiling it takes a second, each time. So
#              functions that the library's statements call, or a role may call, set it off.

function report(i, text) { print file[i] ":" line[i] ": " text; bad = 1 }

# -- tokens: tok[1] to tok[n], and where each is --

function add(t) { tok[++n] = t; file[n] = FILENAME; line[n] = FNR }

function tokens(text) {
    while (sub(/^[ \t]+/, "", text) + 1 && text != "" && text !~ /^--/) {
        if (!match(text, /^([Ee]?'([^']|'')*'|[A-Za-z_][A-Za-z_0-9]*|\$[a-z]*\$|"[^"]*"|[0-9.]+)/) &&
            !match(text, /^(:=|::|->>|->|#>>|#>|=>|<=|>=|<>|!~|~\*|\|\||\.\.)/)) match(text, /^./)
        add(substr(text, 1, RLENGTH))
        text = substr(text, RLENGTH + 1)
    }
}

function literal(t) { return t ~ /^[Ee]?'/ }
function word(t) { return t ~ /^[A-Za-z_"]/ && !literal(t) }
function arithmetic(t) { return t ~ /^[-+*\/%]$/ }

# The other end of what tok[i] opens or closes.
function other_end(i,    depth, step) {
    step = tok[i] ~ /^([(\[]|CASE)$/ ? 1 : -1
    for (; i > first && i <= last; i += step) {
        if (tok[i] ~ /^([(\[]|CASE)$/) depth++
        else if (tok[i] ~ /^([)\]]|END)$/) depth--
        if (depth == 0) break
    }
    return i
}

# Where the operand that ends at i begins.
function start_of(i,    j) {
    for (;;) {
        if (tok[i - 1] == "::") i -= 2
        else if (tok[i] == "]" && tok[i - 3] == "::") i -= 4
        else if (tok[i] ~ /^([)\]]|END)$/) {
            j = other_end(i)
            if (tok[j] == "CASE" || (tok[j] == "(" && !called(j - 1))) return j
            i = j - 1
        } else if (tok[i - 1] == "." && word(tok[i - 2])) i -= 2
        else return i
    }
}

function called(i) {
    return word(tok[i]) && tok[i] !~ /^(SELECT|WHEN|THEN|ELSE|IN|ANY|AS|AND|OR|NOT|RETURN|IF)$/
}

# -- types: "text", "time", "other" (arrays and JSON, which have a || of their own), or "" --

function type_of_name(t) {
    if (t ~ /^(timestamptz|timestamp|interval|date)$/) return "time"
    return t == "text" ? t : t ~ /^jsonb?$/ ? "other" : ""
}

# Of the operand that begins at i. Sets `after`: where it ends.
function type_at(i,    type, j) {
    if (literal(tok[i])) { type = tok[i] ~ /^E?'[{\[]/ ? "other" : "text"; after = i + 1 }
    else if (tok[i] ~ /^\$.*\$$/) {
        for (j = i + 1; tok[j] != tok[i] && j < last; j++) continue
        type = "text"; after = j + 1
    }
    else if (tok[i] == "ARRAY") { type = "other"; after = other_end(i + 1) + 1 }
    else if (tok[i] == "interval" && literal(tok[i + 1])) { type = "time"; after = i + 2 }
    else if (tok[i] == "(") { j = other_end(i); type = type_within(i + 1, j); after = j + 1 }
    else if (tok[i] == "CASE") { j = other_end(i); type = type_of_case(i, j); after = j + 1 }
    else {
        while (tok[i + 1] == "." && word(tok[i + 2])) i += 2
        if (tok[i + 1] == "(") { j = other_end(i + 1); type = type_of_call(i); after = j + 1 }
        else { type = type_of_variable(i); after = i + 1 }
    }
    for (;;) {
        if (tok[after] == "[") { type = element[tok[after - 1]]; after = other_end(after) + 1 }
        else if (tok[after] == "::" && tok[after + 2] == "[") { type = "other"; after += 4 }
        else if (tok[after] == "::") { type = type_of_name(tok[after + 1]); after += 2 }
        else if (tok[after] == "COLLATE") after += 2
        else return type
    }
}

# Of an expression of operands and operators from i to before j.
function type_within(i, j,    type, op, next_type) {
    if (tok[i] == "SELECT") return tok[i + 1] == "string_agg" ? "text" : ""
    type = type_at(i)
    while (after < j) {
        op = tok[after]
        next_type = type_at(after + 1)
        if (op == "->>" || op == "#>>") type = "text"
        else if (arithmetic(op)) type = type == "time" || next_type == "time" ? "time" : ""
        else if (op == "||") type = type == "" ? next_type : type
        else return ""
    }
    return type
}

# text: each branch is.
function type_of_case(i, j,    k, depth, type) {
    for (k = i; k < j; k++) {
        if (tok[k] ~ /^(\(|CASE)$/) depth++
        else if (tok[k] ~ /^(\)|END)$/) depth--
        if (depth != 1 || tok[k] !~ /^(THEN|ELSE)$/ || tok[k + 1] == "NULL") continue
        type = type_at(k + 1)
        while (tok[after] == "||") type_at(after + 1)
        if (type != "text" || tok[after] !~ /^(WHEN|ELSE|END)$/) return type == "other" ? type : ""
    }
    return "text"
}

function type_of_call(i,    name, type) {
    name = tok[i]
    if (name ~ /^(coalesce|nullif|greatest|least)$/) {
        type = type_at(i + 2)
        while (tok[after] ~ /^(\|\||->>)$/) { if (tok[after] == "->>") type = "text"; type_at(after + 1) }
        return tok[after] ~ /^[,)]$/ ? type : ""
    }
    if (tok[i - 1] == "." && tok[i - 2] == "jobq") return returns[name]
    if (name ~ /^(now|statement_timestamp|clock_timestamp|to_timestamp|date_trunc)$/) return "time"
    if (name ~ /^(array_agg|array_fill|array_remove|jsonb_.*|to_jsonb)$/) return "other"
    return index(texts, " " name " ") ? "text" : ""
}

function type_of_variable(i) {
    if (local(i) && (tok[i] in variable)) return variable[tok[i]]
    return tok[i] ~ /_(at|until)$/ ? "time" : tok[i] ~ /(name|key)$/ ? "text" : ""
}

# Whether a name may be one of the function's own.
function local(i) { return tok[i - 1] != "." || tok[i - 2] == fn }

# -- rules --

function rule_concat(    i, j, k, part, type, any) {
    for (i = first; i <= last; i++) {
        if (tok[i] != "||" || (i in seen)) continue
        any = ""
        for (j = start_of(i - 1);; j = after + 1) {
            part[++k] = j
            type[k] = type_at(j)
            if (arithmetic(tok[after]) || tok[after] ~ /^[-#]>/) type[k] = ""
            while (arithmetic(tok[after]) || tok[after] ~ /^[-#]>/) type_at(after + 1)
            if (any != "other" && type[k] ~ /text|other/) any = type[k]
            if (tok[after] != "||") break
            seen[after] = 1
        }
        for (; k > 0; k--) if (any == "text" && type[k] != "text")
            report(part[k], "is it a text, beside ||? " tok[part[k]] tok[part[k] + 1] tok[part[k] + 2])
    }
}

function rule_backslash(    i) {
    for (i = first; i <= last; i++)
        if (tok[i] ~ /^'.*\\/) report(i, "a backslash in a plain literal: " tok[i])
}

function rule_time(    i, j, to, saved) {
    for (i = first; i <= last; i++) {
        if (tok[i] ~ /^(format|concat|concat_ws)$/ && tok[i + 1] == "(") {
            to = other_end(i + 1)
            for (j = i + 2; j < to; j = after + 1) {
                if (type_at(j) == "time" || (arithmetic(tok[after]) && type_within(j, after) == "time"))
                    report(j, "a time as text: use shown() or to_char()")
                for (; after < to && tok[after] != ","; after++)
                    if (tok[after] ~ /^[(\[]$/) after = other_end(after)
            }
        }
        if (tok[i] != "::" || tok[i + 1] != "text") continue
        j = start_of(i - 1)
        saved = tok[i]
        tok[i] = ";"
        if (type_at(j) == "time") report(i, "a time as text: use shown() or to_char()")
        tok[i] = saved
    }
}

function is_text(i) {
    return local(i) && (variable[tok[i]] == "text" || element[tok[i]] == "text")
}

function rule_collation(    i, left, right, end, assigns) {
    for (i = first; i <= last; i++) {
        if (tok[i] ~ /^(SET|USING)$/) assigns = 1
        if (tok[i] ~ /^(WHERE|FROM|RETURNING|;|\$\$)$/) assigns = 0
        if (assigns || tok[i] !~ /^(=|<>|<|>|<=|>=|~|!~|~\*|LIKE)$/) continue
        left = tok[i - 1] == "NOT" ? i - 2 : i - 1
        right = tok[i + 1] ~ /^(ANY|ALL)$/ ? i + 3 : i + 1
        if (tok[right + 1] == ".") right += 2
        end = tok[right + 1] == "[" ? other_end(right + 1) : right
        if (is_text(left) && is_text(right)) continue
        if (is_text(left) && tok[right + 1] != "COLLATE" && (tok[i] ~ /[~L]/ || !literal(tok[right])))
            report(i, tok[left] " COLLATE \"C\" " tok[i])
        else if (is_text(right) && tok[end + 1] !~ /^(COLLATE|\()$/ && !literal(tok[left]))
            report(i, tok[i] " " tok[right] " COLLATE \"C\"")
    }
}

# Arguments and variables: a name, then a type.
function declare(    i, type) {
    for (i in variable) delete variable[i]
    for (i in element) delete element[i]
    for (i = first; i < last; i++) {
        if (!word(tok[i]) || tok[i - 1] ~ /^(::|AS|RETURNS|RETURN|interval)$/) continue
        if (tok[i + 1] !~ /^(text|timestamptz|timestamp|interval|date|jsonb?|bigint|integer|smallint)$/) continue
        if (tok[i + 2] ~ /^(\(|\.)$/ || literal(tok[i + 2])) continue
        type = type_of_name(tok[i + 1])
        variable[tok[i]] = tok[i + 2] == "[" ? "other" : type
        if (tok[i + 2] == "[") element[tok[i]] = type
    }
}

function check(u,    i) {
    first = begins[u]
    last = begins[u + 1] - 1
    fn = name[u]
    declare()
    rule_concat()
    rule_time()
    if (fn == "") return
    rule_collation()
    if (head[u] !~ /standard_conforming_strings = on/) rule_backslash()
    for (i = first; i <= last && fn ~ doors && head[u] !~ /SET jit = off| PROCEDURE /; i++)
        if (tok[i] ~ /^(SELECT|PERFORM|INSERT|UPDATE|DELETE)$/) {
            report(first, fn "() is called from outside: SET jit = off")
            break
        }
}

# What may be called from outside: the function doors() has it as patterns.
function find_doors(u,    i, all) {
    for (i = begins[u]; i < begins[u + 1]; i++) {
        if (tok[i] == "THEN") all = all "|"
        if (literal(tok[i]) && tok[i - 1] != "WHEN") all = all substr(tok[i], 2, length(tok[i]) - 2)
    }
    doors = "^(" substr(doors, 3, length(doors) - 4) all ")$"
}

# -- files: first the statements of the library, then SQL --

BEGIN {
    texts = " format left right substr substring replace translate md5 encode to_hex to_char upper" \
        " lower btrim concat concat_ws string_agg array_to_string quote_literal quote_ident" \
        " regexp_replace split_part repeat current_setting pg_get_serial_sequence "
}

FILENAME ~ /[.]h$/ {
    if (match($0, /^ +[XR]\([A-Z_]+, "[a-z_]+"/)) {
        text = substr($0, RSTART, RLENGTH - 1)
        sub(/.*"/, "", text)
        doors = doors "|" text
    }
    next
}

FILENAME ~ /fingerprint[.]sql$/ { next } # its caller makes the settings

/^(CREATE|DO|INSERT|GRANT|SELECT)/ || FNR == 1 {
    begins[++units] = n + 1
    name[units] = head[units] = ""
    if (/^CREATE (OR REPLACE )?(FUNCTION|PROCEDURE)/) {
        text = $0
        sub(/\(.*/, "", text)
        sub(/.*[.]/, "", text)
        name[units] = text
    }
    in_head = name[units] != ""
}

{
    if (in_head) head[units] = head[units] " " $0
    if (in_head && match($0, /RETURNS (SETOF )?[a-z]+/)) {
        text = substr($0, RSTART, RLENGTH)
        sub(/.* /, "", text)
        returns[name[units]] = type_of_name(text)
    }
    if (/\$\$/) in_head = 0
    tokens($0)
}

END {
    begins[units + 1] = n + 1
    doors = "^(" substr(doors, 2) ")$"
    for (u = 1; u <= units; u++) if (name[u] == "doors") find_doors(u)
    for (u = 1; u <= units; u++) check(u)
    exit bad
}
