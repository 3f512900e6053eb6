//go:build !linux

package proc

import (
	"errors"
	"syscall"
)

func attributes(bool) *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

func limit(_ int, memory uint64) error {
	if memory > 0 {
		return errors.New("memory limits need Linux")
	}
	return nil
}

func awaitExit(int) {}

func sealDescriptors() {}
