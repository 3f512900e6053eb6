package testkit

import (
	"io/fs"
	"sync"

	"github.com/trtship/trtship/internal/store"
)

// FaultFS is a file system whose n-th operation fails. With At 0 it only
// counts, so that a first pass says how many operations there are.
type FaultFS struct {
	store.FS
	At    int64 // operation to fail, from 1
	Err   error
	Short bool // a write takes half of its bytes and says so, before Err

	mu    sync.Mutex
	count int64
	hit   string
}

// Count returns the operations so far.
func (f *FaultFS) Count() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.count
}

// Hit describes the operation that failed; empty if none did.
func (f *FaultFS) Hit() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.hit
}

func (f *FaultFS) op(name, path string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count++
	if f.count != f.At {
		return nil
	}
	f.hit = name + " " + path
	return &fs.PathError{Op: name, Path: path, Err: f.Err}
}

// Open fails or opens.
func (f *FaultFS) Open(path string) (store.File, error) {
	if err := f.op("open", path); err != nil {
		return nil, err
	}
	return f.wrap(f.FS.Open(path))
}

// Create fails or creates.
func (f *FaultFS) Create(path string) (store.File, error) {
	if err := f.op("create", path); err != nil {
		return nil, err
	}
	return f.wrap(f.FS.Create(path))
}

func (f *FaultFS) wrap(file store.File, err error) (store.File, error) {
	if err != nil {
		return nil, err
	}
	return &faultFile{File: file, fs: f}, nil
}

// Rename fails or renames.
func (f *FaultFS) Rename(old, to string) error {
	if err := f.op("rename", to); err != nil {
		return err
	}
	return f.FS.Rename(old, to)
}

// Mkdir fails or makes a folder.
func (f *FaultFS) Mkdir(path string) error {
	if err := f.op("mkdir", path); err != nil {
		return err
	}
	return f.FS.Mkdir(path)
}

// MkdirAll fails or makes folders.
func (f *FaultFS) MkdirAll(path string) error {
	if err := f.op("mkdir", path); err != nil {
		return err
	}
	return f.FS.MkdirAll(path)
}

// Chmod fails or changes permissions.
func (f *FaultFS) Chmod(path string, mode fs.FileMode) error {
	if err := f.op("chmod", path); err != nil {
		return err
	}
	return f.FS.Chmod(path, mode)
}

// Remove fails or removes.
func (f *FaultFS) Remove(path string) error {
	if err := f.op("remove", path); err != nil {
		return err
	}
	return f.FS.Remove(path)
}

// ReadDir fails or lists.
func (f *FaultFS) ReadDir(path string) ([]fs.DirEntry, error) {
	if err := f.op("readdir", path); err != nil {
		return nil, err
	}
	return f.FS.ReadDir(path)
}

// Lstat fails or describes.
func (f *FaultFS) Lstat(path string) (fs.FileInfo, error) {
	if err := f.op("lstat", path); err != nil {
		return nil, err
	}
	return f.FS.Lstat(path)
}

// Symlink fails or links.
func (f *FaultFS) Symlink(target, path string) error {
	if err := f.op("symlink", path); err != nil {
		return err
	}
	return f.FS.Symlink(target, path)
}

// Link fails or links.
func (f *FaultFS) Link(old, to string) error {
	if err := f.op("link", to); err != nil {
		return err
	}
	return f.FS.Link(old, to)
}

// SyncDir fails or syncs.
func (f *FaultFS) SyncDir(path string) error {
	if err := f.op("syncdir", path); err != nil {
		return err
	}
	return f.FS.SyncDir(path)
}

type faultFile struct {
	store.File
	fs *FaultFS
}

func (f *faultFile) Read(b []byte) (int, error) {
	if err := f.fs.op("read", f.Name()); err != nil {
		return 0, err
	}
	return f.File.Read(b)
}

func (f *faultFile) Write(b []byte) (int, error) {
	if err := f.fs.op("write", f.Name()); err != nil {
		if f.fs.Short {
			n, _ := f.File.Write(b[:len(b)/2])
			return n, nil // a short write that does not even say so
		}
		return 0, err
	}
	return f.File.Write(b)
}

func (f *faultFile) Sync() error {
	if err := f.fs.op("sync", f.Name()); err != nil {
		return err
	}
	return f.File.Sync()
}

func (f *faultFile) Close() error {
	err := f.fs.op("close", f.Name())
	if cerr := f.File.Close(); err == nil {
		err = cerr
	}
	return err
}
