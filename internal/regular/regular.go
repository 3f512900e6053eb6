// Package regular opens files that have an end. A named pipe, a device or a
// socket in the place of a file is refused at once: opening a pipe waits until
// somebody writes to it, and a device such as /dev/zero never ends.
package regular

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"strings"
	"syscall"
)

// kindError says what is there instead of a file.
type kindError struct {
	mode fs.FileMode
}

func (e kindError) Error() string {
	switch {
	case e.mode.IsDir():
		return "is a folder"
	case e.mode&fs.ModeNamedPipe != 0:
		return "is no regular file but a named pipe"
	case e.mode&fs.ModeSocket != 0:
		return "is no regular file but a socket"
	case e.mode&fs.ModeDevice != 0:
		return "is no regular file but a device"
	}
	return "is no regular file"
}

// Odd reports whether something is neither a regular file nor a folder.
func Odd(mode fs.FileMode) bool { return !mode.IsRegular() && !mode.IsDir() }

// Check returns an error if there is something at path that is neither a
// regular file nor a folder. What is not there, or cannot be asked for, is no
// error of this kind.
func Check(path string) error {
	info, err := os.Stat(path)
	if err == nil && Odd(info.Mode()) {
		return &fs.PathError{Op: "open", Path: path, Err: kindError{info.Mode()}}
	}
	return nil
}

// Open opens a regular file for reading. It never waits, and its error is an
// *fs.PathError as of os.Open. A symbolic link is followed.
func Open(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, syscall.ENXIO) { // what opening a socket gives
		return nil, &fs.PathError{Op: "open", Path: path, Err: kindError{fs.ModeSocket}}
	}
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: path, Err: kindError{info.Mode()}}
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// ReadFile reads a regular file.
func ReadFile(path string) ([]byte, error) {
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // only read
	var b bytes.Buffer
	if info, err := f.Stat(); err == nil { // a hint: the file can grow meanwhile
		b.Grow(int(info.Size()) + bytes.MinRead)
	}
	if _, err := b.ReadFrom(f); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// Literal returns the pattern of filepath.Glob that matches a path and nothing
// else, for a folder whose name holds what a pattern is made of.
func Literal(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}
