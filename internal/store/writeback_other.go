//go:build !linux

package store

func startWriteback(File, int64, int64) {}
