# needs snapshot.tsv
set terminal svg size 800,400 font "sans-serif,12" background rgb "white"
set output "snapshot.svg"
set title "A drain behind a held snapshot"
set xlabel "seconds"
set ylabel "jobs done"
set grid
set key off
plot "snapshot.tsv" using 1:2 with lines linewidth 2
