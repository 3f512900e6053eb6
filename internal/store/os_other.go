//go:build !linux

package store

import "syscall"

func startWriteback(File, int64, int64) {}

func ctimeNano(st *syscall.Stat_t) int64 { return st.Ctimespec.Nano() }

const needsCleaning = syscall.EIO
