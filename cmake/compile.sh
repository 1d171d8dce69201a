#!/bin/sh
# compile.sh ROOT CCACHE COMPILER ARGUMENTS...: compiles through ccache, so that a clone of the tree at another place finds the
# objects of this one.
#
# A precompiled header holds the absolute paths of what it includes. It is made anew in each tree, and beside it lies a sum of
# its command and of all files in it: ccache takes that sum for the header (CCACHE_PCH_EXTSUM).
root=$1 ccache=$2
shift 2
case " $* " in
*" -emit-pch "*)
  "$@" || exit
  output='' list='' last=''
  for argument in "$@"; do
    case $last in
    -o) output=$argument ;;
    -MF) list=$argument ;;
    esac
    last=$argument
  done
  {
    echo "$*" | sed "s|$root|.|g"
    sed -e '1s/^[^:]*://' -e 's/\\$//' "$list" | xargs cat | sed "s|$root|.|g"
  } | sha256sum >"$output.sum"
  ;;
*)
  export CCACHE_BASEDIR="$root" CCACHE_NOHASHDIR=true CCACHE_PCH_EXTSUM=true
  export CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
  exec "$ccache" "$@"
  ;;
esac
