# needs size.tsv
set terminal svg size 800,400 font "sans-serif,12" background rgb "white"
set output "size.svg"
set title "The table of jobs in steady use"
set xlabel "seconds"
set ylabel "MB"
set grid
set yrange [0:*]
set key bottom right
plot "size.tsv" using 1:2 with lines linewidth 2 title "heap", \
     "size.tsv" using 1:3 with lines linewidth 2 title "indexes"
