# needs peers.tsv
set terminal svg size 1000,700 font "sans-serif,12" background rgb "white"
set output "peers.svg"
set datafile separator "\t"
set title "Speed as a share of jobq's in the same round"
set xlabel "peer / jobq (left of 1: slower than jobq; for latencies jobq / peer)"
set logscale x
set grid x
set key off
set style fill solid 0.6
set yrange [*:*] reverse
set xrange [*<0.5:2<*]
set lmargin 60
plot "peers.tsv" using (1):0:(1):2:($0 - 0.4):($0 + 0.4):ytic(1) with boxxyerror \
         linecolor rgb "#4477aa"
