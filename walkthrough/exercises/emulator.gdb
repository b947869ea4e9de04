# For gdb and kernels on the emulator:   gdb -x walkthrough/exercises/emulator.gdb --args build-debug/bin/dsa check ...
set pagination off
set filename-display basename
set print inferior-events off
set print elements 4

define mbarrier
  printf "waiting for: parity %d, %d arrivals, %d bytes\n", (int)(($arg0 >> 63) & 1), (int)(($arg0 >> 40) & 0x7fffff), (int)($arg0 & 0xffffffffff)
end
document mbarrier
mbarrier EXPRESSION: what the phase under way of a mbarrier still waits for, as in `mbarrier s.full[0]`.
The 8 bytes of a mbarrier hold a picture of its state, for this; the hardware's own encoding is not known.
end

define everybody
  set $text = dsa::emulator::scheduler().deadlock_report().c_str()
  while *$text != '\n'
    set $text = $text + 1
  end
  set print elements 0
  printf "%s\n", $text + 1
  set print elements 4
end
document everybody
everybody: where the threads of the resident blocks wait, or waited last.
end
