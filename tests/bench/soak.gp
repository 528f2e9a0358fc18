# needs soak.tsv
set terminal svg size 900,900 font "sans-serif,12" background rgb "white"
set output "soak.svg"
stats "soak.tsv" using 1 nooutput
end = STATS_max / 60
set multiplot layout 4,1 title "Jobs and messages at half of their peak, a snapshot held in the shaded third"
set object 1 rectangle from end/3, graph 0 to 2*end/3, graph 1 fillcolor rgb "#eeeeee" fillstyle solid noborder behind
set xrange [0:end]
set yrange [0:*]
set grid
set key outside right width 2
set lmargin 10
set rmargin 24
set ylabel "a second"
plot "soak.tsv" using ($1/60):12 with lines title "jobs", "" using ($1/60):13 with lines title "messages"
set ylabel "MB"
plot "soak.tsv" using ($1/60):2 with lines title "job heap", "" using ($1/60):3 with lines title "job indexes", \
     "" using ($1/60):4 with lines title "outbox", "" using ($1/60):5 with lines title "history", \
     "" using ($1/60):7 with lines title "process' memory"
set ylabel "thousands"
plot "soak.tsv" using ($1/60):6 with lines title "dead rows", "" using ($1/60):($14/1000) with lines title "backlog"
set ylabel "ms"
set xlabel "minutes"
set logscale y
set yrange [*:*]
plot "soak.tsv" using ($1/60):8 with lines title "jobs p50", "" using ($1/60):9 with lines title "jobs p99", \
     "" using ($1/60):10 with lines title "messages p50", "" using ($1/60):11 with lines title "messages p99"
unset multiplot
