# SPDX-License-Identifier: MIT-0 OR Unlicense
# table.awk -- makes a table of medians from runs.tsv. -v csv=FILE also writes them to a file,
# -v ratios=FILE writes what the plot of ratios needs. -v beside=NAME: floors are figures of NAME, and
# all ratios are plotted.
# Fields: row, run, label, value, unit, label of the floor, floor, sense, target.
BEGIN { FS = "\t" }
function median(list, count,   i, j, t) {
    for (i = 2; i <= count; i++) {
        t = list[i]
        for (j = i - 1; j >= 1 && list[j] > t; j--) list[j + 1] = list[j]
        list[j + 1] = t
    }
    return count % 2 ? list[(count + 1) / 2] : (list[count / 2] + list[count / 2 + 1]) / 2
}
function number(x) {
    if (x == 0) return "0"
    if (x >= 1000 || x <= -1000) return grouped(sprintf("%.0f", x))
    return sprintf((x >= 100 ? "%.0f" : x >= 10 ? "%.1f" : x >= 0.1 ? "%.2f" : "%.4f"), x)
}
function grouped(s) { return length(s) > 3 ? grouped(substr(s, 1, length(s) - 3)) "," substr(s, length(s) - 2) : s }
{
    key = $1 "\t" $3 "\t" ($4 == "note" ? "" : $5) "\t" $6 "\t" $8 "\t" $9
    # A label that begins with a blank belongs to the label before it.
    if ($3 ~ /^ /) key = under "\t" key
    else under = $3
    if (!(key in seen)) order[++keys] = key
    n = ++seen[key]
    row[key] = $1; label[key] = $3; unit[key] = $5; floors[key] = $6; sense[key] = $8; target[key] = $9
    value[key, n] = $4 == "missing" || $4 == "note" ? $4 : $4 + 0
    floor[key, n] = $7 + 0
}
END {
    print "row,figure,value,unit,floor,floor_value,ratio,spread,target,met,runs" >csv
    line = sprintf("%-54s %12s %-9s %12s %7s %7s  %-8s %s", "figure", "median", "", beside == "" ? "floor" : beside, "ratio", "spread", "target", "")
    print line
    for (k = 1; k <= keys; k++) {
        key = order[k]
        n = seen[key]
        if (row[key] != last) print ""
        last = row[key]
        if (value[key, 1] == "note") {
            printf "%s %s\n", label[key], unit[key]
            continue
        }
        if (value[key, 1] == "missing") {
            printf "%-54s %12s (%s)\n", label[key], "not there yet", unit[key]
            printf "%s,\"%s\",,,,,,,,not there yet,\n", row[key], label[key] >csv
            continue
        }
        for (i = 1; i <= n; i++) { v[i] = value[key, i]; f[i] = floor[key, i]; r[i] = f[i] > 0 ? v[i] / f[i] : v[i] }
        mv = median(v, n); mf = median(f, n); mr = median(r, n)
        spread = mr != 0 ? (r[n] - r[1]) / mr : 0
        s = sense[key]
        ratio = s ~ /^ratio/
        judged = ratio ? mr : mv
        met = s == "-" ? "" : (s ~ />=$/ ? judged >= target[key] : judged <= target[key]) ? "yes" : "NO"
        goal = s == "-" ? "" : (s ~ />=$/ ? ">= " : "<= ") target[key]
        printf "%-54s %12s %-9s %12s %7s %7s  %-8s %s\n", label[key], number(mv), unit[key],
            (mf > 0 ? number(mf) : ""), (mf > 0 ? sprintf("%.3f", mr) : ""),
            (n > 1 ? sprintf("%.0f %%", 100 * spread) : ""), goal, met
        if ((ratio || beside != "" && mf > 0) && ratios != "") printf "%s\t%g\t%g\n", label[key], mr, target[key] >ratios
        printf "%s,\"%s\",%g,%s,\"%s\",%g,%s,%.3f,%s,%s,%d\n", row[key], label[key], mv, unit[key], floors[key], mf,
            (mf > 0 ? sprintf("%.4f", mr) : ""), spread, goal, met, n >csv
    }
}
