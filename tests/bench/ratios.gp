# needs ratios.tsv
set terminal svg size 1000,900 font "sans-serif,12" background rgb "white"
set output "ratios.svg"
set datafile separator "\t"
set title "Speed as a share of the floor (red: target)"
set xlabel "figure / floor"
set grid x
set key off
set style fill solid 0.6
set yrange [*:*] reverse
set xrange [0:*]
set lmargin 60
plot "ratios.tsv" using (0):0:(0):2:($0 - 0.4):($0 + 0.4):ytic(1) with boxxyerror \
         linecolor rgb "#4477aa", \
     "ratios.tsv" using 3:0:($3 - 0.004):($3 + 0.004):($0 - 0.45):($0 + 0.45) with boxxyerror \
         linecolor rgb "#cc3311" fillstyle solid 1.0
