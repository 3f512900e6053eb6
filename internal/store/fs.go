package store

import (
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// FS are the file operations of the store and of run folders. Tests put one in
// between that fails.
type FS interface {
	Open(path string) (File, error)
	// Create makes a file that must not exist.
	Create(path string) (File, error)
	Rename(old, to string) error
	Mkdir(path string) error
	MkdirAll(path string) error
	Chmod(path string, mode fs.FileMode) error
	// Remove removes a file, a link or an empty folder.
	Remove(path string) error
	ReadDir(path string) ([]fs.DirEntry, error)
	Lstat(path string) (fs.FileInfo, error)
	Symlink(target, path string) error
	// Link makes a second name of a file; the name must not exist.
	Link(old, to string) error
	// SyncDir makes the names in a folder durable.
	SyncDir(path string) error
}

// File is an open file.
type File interface {
	io.Reader
	io.Writer
	io.Closer
	Name() string
	Stat() (fs.FileInfo, error)
	Sync() error
	// Fd is the descriptor, for hints to the kernel; ^uintptr(0) if there is none.
	Fd() uintptr
}

// OS is the file system of the machine.
type OS struct{}

var _ FS = OS{}

// Open opens a file for reading.
func (OS) Open(path string) (File, error) { return os.Open(path) }

// Create makes a new file.
func (OS) Create(path string) (File, error) {
	return os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
}

// Rename renames a file or folder.
func (OS) Rename(old, to string) error { return os.Rename(old, to) }

// Mkdir makes one folder.
func (OS) Mkdir(path string) error { return os.Mkdir(path, 0o755) }

// MkdirAll makes a folder and those above it.
func (OS) MkdirAll(path string) error { return os.MkdirAll(path, 0o755) }

// Chmod changes permissions.
func (OS) Chmod(path string, mode fs.FileMode) error { return os.Chmod(path, mode) }

// Remove removes one name.
func (OS) Remove(path string) error { return os.Remove(path) }

// ReadDir lists a folder by name.
func (OS) ReadDir(path string) ([]fs.DirEntry, error) { return os.ReadDir(path) }

// Lstat describes a name without following it.
func (OS) Lstat(path string) (fs.FileInfo, error) { return os.Lstat(path) }

// Symlink makes a symbolic link.
func (OS) Symlink(target, path string) error { return os.Symlink(target, path) }

// Link makes a hard link.
func (OS) Link(old, to string) error { return os.Link(old, to) }

// SyncDir flushes a folder.
func (OS) SyncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	err = d.Sync()
	if cerr := d.Close(); err == nil {
		err = cerr
	}
	return err
}

// removeAll removes a tree, read-only folders included. A name that is not
// there is no error.
func removeAll(fsys FS, path string) error {
	info, err := fsys.Lstat(path)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.IsDir() {
		if info.Mode().Perm()&0o700 != 0o700 {
			if err := fsys.Chmod(path, 0o755); err != nil {
				return err
			}
		}
		entries, err := fsys.ReadDir(path)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if err := removeAll(fsys, filepath.Join(path, e.Name())); err != nil {
				return err
			}
		}
	}
	if err := fsys.Remove(path); err != nil && !os.IsNotExist(err) {
		return err
	}
	return nil
}
