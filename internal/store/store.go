// Package store keeps artifacts: immutable folders of files, named by their
// contents, and the records of the stages that made them.
//
// The layout below the root:
//
//	format                          tag of this layout
//	<kind>/<kind>-<12 digits>/      one artifact: record.json and files/
//	cache/<stage>/<64 digits>.json  what a stage made under a key
//	last/<project>/<stage>.json     the key of a project's last run of a stage
//	roots/<run>.json                what a run refers to; gc keeps it
//	sources/<64 digits>             digests of files outside, by size and times
//	damaged/                        artifacts whose bytes changed, as evidence
//	scratch/<owner>/                unfinished work; swept when its owner is dead
//	locks/                          file locks
//
// Nothing appears under a final name before it is whole and on disk: files are
// written in scratch on the same file system, synced, made read-only, and
// renamed in one step. Every use of an artifact hashes it again.
package store

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/gofrs/flock"

	"github.com/trtship/trtship/internal/failpoint"
	"github.com/trtship/trtship/internal/failure"
)

// Layout is the tag of the folder's format. A store with another tag is refused.
const Layout = "trtship-store/1\n"

// Names of the folders beside the kinds.
const (
	cacheDir   = "cache"
	lastDir    = "last"
	rootsDir   = "roots"
	sourcesDir = "sources"
	damagedDir = "damaged"
	scratchDir = "scratch"
	locksDir   = "locks"
	formatFile = "format"
	recordFile = "record.json"
	filesDir   = "files"
)

// reserved folders are no kinds.
var reserved = map[string]bool{
	cacheDir: true, lastDir: true, rootsDir: true, sourcesDir: true,
	damagedDir: true, scratchDir: true, locksDir: true,
}

// Store is an open store. It is safe for use by several goroutines, and by any
// number of processes at once.
type Store struct {
	root string
	fs   FS
	now  func() time.Time
	use  *flock.Flock // held shared while the store is open; gc takes it alone

	mu      sync.Mutex
	scratch *scratch // made when first needed
}

// Option changes how a store works.
type Option func(*Store)

// WithFS puts another file system under the store.
func WithFS(fsys FS) Option { return func(s *Store) { s.fs = fsys } }

// WithClock sets the clock, which only dates evidence, entries and scratch.
func WithClock(now func() time.Time) Option { return func(s *Store) { s.now = now } }

// Open opens the store at root and makes it if it is not there. Leftovers of
// dead runs are swept. Close must be called.
func Open(ctx context.Context, root string, options ...Option) (*Store, error) {
	abs, err := filepath.Abs(root)
	if err != nil {
		return nil, failure.New(failure.Artifact, "open store: %w", err).At(root)
	}
	s := &Store{root: abs, fs: OS{}, now: time.Now}
	for _, o := range options {
		o(s)
	}
	s.use = newLock(filepath.Join(abs, locksDir, "store"))
	err = s.init()
	if err == nil {
		if _, lerr := s.use.TryRLockContext(ctx, 20*time.Millisecond); lerr != nil {
			err = fmt.Errorf("lock store: %w", lerr)
		}
	}
	if err != nil {
		_ = s.Close() // the first error is the one to report
		return nil, unusable(root, err)
	}
	s.sweep()
	return s, nil
}

func unusable(root string, err error) error {
	if f, ok := errors.AsType[*failure.Error](err); ok {
		return f
	}
	return failure.New(failure.Artifact, "open store: %w", err).At(root).
		WithHint("The store must be a writable folder; set TRTSHIP_STORE or --store to another.")
}

var storeInit = failpoint.New("store.init.made")

func (s *Store) init() error {
	for _, d := range []string{cacheDir, lastDir, rootsDir, sourcesDir, damagedDir, scratchDir, locksDir} {
		if err := s.fs.MkdirAll(filepath.Join(s.root, d)); err != nil {
			return err
		}
	}
	if err := storeInit.Hit(); err != nil {
		return err
	}
	format := filepath.Join(s.root, formatFile)
	have, err := s.readAll(format)
	switch {
	case err == nil && string(have) == Layout:
		return nil
	case err == nil:
		return failure.New(failure.Artifact, "open store: its layout is %q, this program reads %q",
			strings.TrimSpace(string(have)), strings.TrimSpace(Layout)).At(format).
			WithHint("Use another store (TRTSHIP_STORE), or remove this one.")
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	return s.writeFile(format, []byte(Layout))
}

// Close removes this process's scratch and lets go of the store.
func (s *Store) Close() error {
	s.mu.Lock()
	sc := s.scratch
	s.scratch = nil
	s.mu.Unlock()
	var err error
	if sc != nil {
		err = sc.remove(s.fs)
	}
	if cerr := s.use.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return failure.New(failure.Artifact, "close store: %w", err).At(s.root)
	}
	return nil
}

// Root returns the store's absolute folder.
func (s *Store) Root() string { return s.root }

// FS returns the file operations under the store.
func (s *Store) FS() FS { return s.fs }

// readLimit bounds the JSON documents of the store itself; reports hold raw
// samples and may be large.
const readLimit = 1 << 30

func (s *Store) readAll(path string) ([]byte, error) {
	f, err := s.fs.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // read only
	b, err := io.ReadAll(io.LimitReader(f, readLimit+1))
	if err == nil && len(b) > readLimit {
		err = fmt.Errorf("larger than %d bytes", readLimit)
	}
	return b, err
}

var (
	fileWritten = failpoint.New("store.file.written")
	fileSynced  = failpoint.New("store.file.synced")
	fileRenamed = failpoint.New("store.file.renamed")
)

// writeFile writes a file of the store by way of scratch.
func (s *Store) writeFile(path string, data []byte) error {
	tmp, err := s.scratchName("file")
	if err != nil {
		return err
	}
	if err := s.fs.MkdirAll(filepath.Dir(path)); err != nil {
		return err
	}
	return replaceFile(s.fs, tmp, path, data)
}

// WriteFile writes a whole file under a temporary name in the same folder,
// syncs it, and renames it over path: a reader finds the old or the new bytes.
func WriteFile(fsys FS, path string, data []byte) error {
	return replaceFile(fsys, filepath.Join(filepath.Dir(path), ".tmp-"+random(8)), path, data)
}

func replaceFile(fsys FS, tmp, path string, data []byte) error {
	err := writeSync(fsys, tmp, data)
	if err == nil {
		err = fileSynced.Hit()
	}
	if err == nil {
		err = fsys.Rename(tmp, path)
	}
	if err != nil {
		_ = fsys.Remove(tmp) // the first error is the one to report
		return fmt.Errorf("write %s: %w", filepath.Base(path), err)
	}
	if err := fileRenamed.Hit(); err != nil {
		return err
	}
	if err := fsys.SyncDir(filepath.Dir(path)); err != nil {
		return fmt.Errorf("sync folder of %s: %w", filepath.Base(path), err)
	}
	return nil
}

func writeSync(fsys FS, path string, data []byte) error {
	f, err := fsys.Create(path)
	if err != nil {
		return err
	}
	n, err := f.Write(data)
	if err == nil && n < len(data) {
		err = io.ErrShortWrite
	}
	if err == nil {
		err = fileWritten.Hit()
	}
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

// random returns n hexadecimal digits.
func random(n int) string {
	b := make([]byte, (n+1)/2)
	_, _ = rand.Read(b) // never fails since Go 1.24
	return hex.EncodeToString(b)[:n]
}

// Lock takes the lock of a name alone, waiting for other processes and
// goroutines as long as ctx lasts. The waiting function, if not nil, is called
// once when there is something to wait for.
func (s *Store) Lock(ctx context.Context, name string, waiting func()) (unlock func(), err error) {
	if strings.ContainsAny(name, "/\\") || name == "" || name == "store" {
		return nil, fmt.Errorf("lock name %q is not usable", name)
	}
	l := newLock(filepath.Join(s.root, locksDir, name))
	ok, err := l.TryLock()
	if err == nil && !ok {
		if waiting != nil {
			waiting()
		}
		_, err = l.TryLockContext(ctx, 50*time.Millisecond)
	}
	if err != nil {
		_ = l.Close()
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, failure.New(failure.Artifact, "lock %s: %w", name, err).At(filepath.Join(s.root, locksDir))
	}
	if err := lockTaken.Hit(); err != nil {
		_ = l.Close()
		return nil, err
	}
	return func() { _ = l.Close() }, nil
}

var lockTaken = failpoint.New("store.lock.taken")

// newLock makes a lock file that other users of the machine can lock too.
func newLock(path string) *flock.Flock {
	return flock.New(path, flock.SetPermissions(0o644))
}

func isNotExist(err error) bool { return errors.Is(err, fs.ErrNotExist) }

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
