# needs latency.tsv
set terminal svg size 800,400 font "sans-serif,12" background rgb "white"
set output "latency.svg"
set title "From an enqueue to an idle worker's handler"
set xlabel "milliseconds"
set ylabel "share of the samples"
set logscale x
set grid
set key bottom right
plot "latency.tsv" using 2:1 with lines linewidth 2 title "enqueue to handler", \
     "latency.tsv" using 3:1 with lines linewidth 2 title "insert + NOTIFY to receive"
