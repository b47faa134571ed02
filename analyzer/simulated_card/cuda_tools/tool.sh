#!/bin/sh
# Stand-in for ptxas, nvlink and fatbinary: writes a file without code, which a simulated card loads.
# XLA reads the version (GetToolVersion in stream_executor/cuda/subprocess_compilation.cc).
is_output=
for word; do
  case $word in
    --version) echo "Cuda compilation tools, release 12.9, V12.9.86" ;;
    --output-file=* | --create=*) echo "no code" >"${word#*=}" ;;
  esac
  [ "$is_output" ] && echo "no code" >"$word"
  is_output=
  [ "$word" = -o ] && is_output=yes
done
exit 0
