package store

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/gofrs/flock"

	"github.com/trtship/trtship/internal/failpoint"
	"github.com/trtship/trtship/internal/failure"
)

// scratch is one process's folder for unfinished work. A file lock beside it
// says that its owner lives: the kernel lets go of it however the owner dies,
// and process ids that come round again cannot be mistaken.
type scratch struct {
	dir  string
	lock *flock.Flock
	next int
}

var scratchMade = failpoint.New("store.scratch.made")

// Scratch returns a new empty folder on the store's file system. It is removed
// by Close, or swept by a later Open if this process dies.
func (s *Store) Scratch(name string) (string, error) {
	dir, err := s.scratchName(name)
	if err == nil {
		err = s.fs.Mkdir(dir)
	}
	if err != nil {
		return "", failure.New(failure.Artifact, "make scratch folder: %w", err).At(filepath.Join(s.root, scratchDir))
	}
	return dir, nil
}

// scratchName returns a new name in this process's scratch.
func (s *Store) scratchName(name string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.scratch == nil {
		sc, err := s.newScratch()
		if err != nil {
			return "", err
		}
		s.scratch = sc
	}
	s.scratch.next++
	return filepath.Join(s.scratch.dir, strconv.Itoa(s.scratch.next)+"-"+plain(name)), nil
}

// Discard removes a folder that Scratch made, if it is still there.
func (s *Store) Discard(dir string) error {
	if !s.inScratch(dir) {
		return failure.New(failure.Bug, "discard %s: it is not in scratch", dir)
	}
	return removeAll(s.fs, dir)
}

// inScratch reports whether path lies in this process's scratch.
func (s *Store) inScratch(path string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.scratch != nil && strings.HasPrefix(filepath.Clean(path), s.scratch.dir+string(filepath.Separator))
}

// plain keeps what is harmless in a file name.
func plain(name string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '_':
			return r
		}
		return '-'
	}, name)
}

func (s *Store) newScratch() (*scratch, error) {
	for range 100 {
		dir := filepath.Join(s.root, scratchDir, random(16))
		l := newLock(dir + ".lock")
		if ok, err := l.TryLock(); err != nil {
			return nil, err
		} else if !ok {
			_ = l.Close()
			continue // a sweeper was faster
		}
		if !stillNamed(l) {
			_ = l.Close() // a sweeper removed the name between opening and locking
			continue
		}
		if err := s.fs.Mkdir(dir); err != nil {
			_ = os.Remove(dir + ".lock")
			_ = l.Close()
			return nil, err
		}
		if err := scratchMade.Hit(); err != nil {
			_ = l.Close()
			return nil, err
		}
		return &scratch{dir: dir, lock: l}, nil
	}
	return nil, fmt.Errorf("no free name in %s", filepath.Join(s.root, scratchDir))
}

// remove takes the folder away before the lock, so that what is left after a
// failure in between is swept.
func (sc *scratch) remove(fsys FS) error {
	err := removeAll(fsys, sc.dir)
	if err == nil {
		err = fsys.Remove(sc.dir + ".lock")
	}
	if cerr := sc.lock.Close(); err == nil {
		err = cerr
	}
	return err
}

// sweep removes the scratch of dead owners. It does what it can: the next run
// sweeps again.
func (s *Store) sweep() {
	base := filepath.Join(s.root, scratchDir)
	entries, err := s.fs.ReadDir(base)
	if err != nil {
		return
	}
	for _, e := range entries {
		name := e.Name()
		if owner, ok := strings.CutSuffix(name, ".lock"); ok {
			s.sweepOwner(filepath.Join(base, owner))
		} else if !exists(filepath.Join(base, name+".lock")) {
			_ = removeAll(s.fs, filepath.Join(base, name)) // the lock is made first and removed last
		}
	}
}

// stillNamed reports whether the locked file is the one that its name means.
func stillNamed(l *flock.Flock) bool {
	held, err := l.Stat()
	if err != nil {
		return false
	}
	named, err := os.Stat(l.Path())
	return err == nil && os.SameFile(held, named)
}

func (s *Store) sweepOwner(dir string) {
	l := newLock(dir + ".lock")
	defer l.Close() //nolint:errcheck // nothing to do about it
	if ok, err := l.TryLock(); err != nil || !ok {
		return
	}
	if removeAll(s.fs, dir) == nil {
		_ = s.fs.Remove(dir + ".lock")
	}
}

// Leftovers lists scratch whose owner is dead, relative to the root.
func (s *Store) Leftovers() []string {
	base := filepath.Join(s.root, scratchDir)
	entries, err := s.fs.ReadDir(base)
	if err != nil {
		return nil
	}
	var out []string
	for _, e := range entries {
		owner, isLock := strings.CutSuffix(e.Name(), ".lock")
		if !isLock {
			if !exists(filepath.Join(base, owner+".lock")) {
				out = append(out, filepath.Join(scratchDir, owner))
			}
			continue
		}
		l := newLock(filepath.Join(base, e.Name()))
		if ok, err := l.TryLock(); err == nil && ok {
			out = append(out, filepath.Join(scratchDir, owner))
		}
		_ = l.Close()
	}
	return out
}
