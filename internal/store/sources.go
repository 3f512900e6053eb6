package store

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sort"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/failure"
)

// HashSource returns a digest of what lies at path: the bytes of a file, or the
// relative names and bytes of the files below a folder. With code set, only
// Python source counts: files ending in .py, outside hidden folders and
// __pycache__. Links are followed.
//
// Digests of files are remembered by size, inode and both times, so that an
// unchanged folder costs one stat a file. A file whose times are so young that
// a later change could leave them equal is not remembered.
func (s *Store) HashSource(ctx context.Context, path string, code bool) (artifact.Digest, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", failure.New(failure.Artifact, "hash %s: %w", path, err)
	}
	files, isDir, err := sourceFiles(abs, code)
	if err != nil {
		return "", failure.New(failure.Artifact, "read source %s: %w", path, rootCause(err)).At(path).
			WithHint("Input paths are relative to the configuration file.")
	}
	cache := s.loadStats(abs)
	digests := make([]artifact.Digest, len(files))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i, f := range files {
		g.Go(func() error {
			d, err := s.hashStat(gctx, cache, f)
			digests[i] = d
			return err
		})
	}
	if err := g.Wait(); err != nil {
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
		return "", failure.New(failure.Artifact, "read source %s: %w", path, err).At(path)
	}
	s.saveStats(abs, cache)
	if !isDir {
		return digests[0], nil
	}
	return treeDigest(abs, files, digests), nil
}

// HashFiles returns the digest of each file, in order; "" for one that is not
// there. The group names what is remembered about them together.
func (s *Store) HashFiles(ctx context.Context, group string, paths []string) ([]artifact.Digest, error) {
	if len(paths) == 0 {
		return nil, nil
	}
	cache := s.loadStats("group " + group)
	digests := make([]artifact.Digest, len(paths))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i, p := range paths {
		g.Go(func() error {
			d, err := s.hashStat(gctx, cache, p)
			if err != nil && !isNotExist(err) {
				return err
			}
			digests[i] = d
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, failure.New(failure.Artifact, "read dependency: %w", err)
	}
	s.saveStats("group "+group, cache)
	return digests, nil
}

// treeDigest hashes names and contents, each name with its length in front.
func treeDigest(root string, files []string, digests []artifact.Digest) artifact.Digest {
	h := sha256.New()
	for i, f := range files {
		rel, err := filepath.Rel(root, f)
		if err != nil {
			rel = f
		}
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(rel)))
		h.Write(n[:])
		h.Write([]byte(filepath.ToSlash(rel)))
		h.Write([]byte(digests[i]))
	}
	return artifact.SumDigest(h.Sum(nil))
}

// sourceFiles lists the files that a source consists of, sorted.
func sourceFiles(path string, code bool) (files []string, isDir bool, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, false, err
	}
	if !info.IsDir() {
		if !info.Mode().IsRegular() {
			return nil, false, fmt.Errorf("%s is no regular file", path)
		}
		return []string{path}, false, nil
	}
	w := sourceWalk{code: code}
	if err := w.dir(path, nil); err != nil {
		return nil, true, err
	}
	sort.Strings(w.files)
	return w.files, true, nil
}

type sourceWalk struct {
	code  bool
	files []string
}

func (w *sourceWalk) dir(path string, above []fs.FileInfo) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	for _, a := range above {
		if os.SameFile(a, info) {
			return nil // a link to a folder above: its files are listed there
		}
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := w.entry(filepath.Join(path, e.Name()), e, append(above[:len(above):len(above)], info)); err != nil {
			return err
		}
	}
	return nil
}

func (w *sourceWalk) entry(path string, e fs.DirEntry, above []fs.FileInfo) error {
	name := e.Name()
	mode := e.Type()
	if mode&fs.ModeSymlink != 0 {
		info, err := os.Stat(path)
		if os.IsNotExist(err) {
			return nil // a dangling link cannot be read by anybody
		}
		if err != nil {
			return err
		}
		mode = info.Mode().Type()
	}
	switch {
	case mode.IsDir():
		if name == "__pycache__" || w.code && strings.HasPrefix(name, ".") {
			return nil
		}
		return w.dir(path, above)
	case mode == 0:
		if !w.code || strings.HasSuffix(name, ".py") {
			w.files = append(w.files, path)
		}
	}
	return nil
}

// stamp is what a file looks like from outside.
type stamp struct {
	size  int64
	mtime int64 // ns
	ctime int64 // ns; cannot be set, unlike mtime
	inode uint64
	dev   uint64
}

func stampOf(info fs.FileInfo) stamp {
	st := stamp{size: info.Size(), mtime: info.ModTime().UnixNano()}
	if sys, ok := info.Sys().(*syscall.Stat_t); ok {
		st.ctime, st.inode, st.dev = ctimeNano(sys), sys.Ino, uint64(sys.Dev) //nolint:unconvert // int32 on some systems
	}
	return st
}

// youngest is how long before the hashing a file must have been changed for its
// stamp to be trusted later. File systems count time in steps of up to 2 s.
const youngest = 2 * time.Second

type statCache struct {
	mu      sync.Mutex
	old     map[string]statEntry
	current map[string]statEntry
	dirty   bool
}

type statEntry struct {
	stamp  stamp
	digest artifact.Digest
}

func (s *Store) hashStat(ctx context.Context, c *statCache, path string) (artifact.Digest, error) {
	before, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	st := stampOf(before)
	if e, ok := c.old[path]; ok && e.stamp == st {
		c.keep(path, e, false)
		return e.digest, nil
	}
	started := s.now()
	f, err := s.fs.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close() //nolint:errcheck // read only
	h := sha256.New()
	if _, err := readHash(ctx, f, h); err != nil {
		return "", err
	}
	digest := artifact.SumDigest(h.Sum(nil))
	after, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	limit := started.Add(-youngest).UnixNano()
	if stampOf(after) == st && st.mtime < limit && st.ctime < limit {
		c.keep(path, statEntry{st, digest}, true)
	}
	return digest, nil
}

func (c *statCache) keep(path string, e statEntry, fresh bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.current[path] = e
	c.dirty = c.dirty || fresh
}

func (s *Store) statsPath(source string) string {
	return filepath.Join(s.root, sourcesDir, strings.TrimPrefix(string(sumOf(source)), "sha256:"))
}

// loadStats reads what is known about a source's files. The first line is the
// digest of the rest: a flipped byte must not become a digest of a source.
func (s *Store) loadStats(source string) *statCache {
	c := &statCache{old: map[string]statEntry{}, current: map[string]statEntry{}}
	text, err := s.readAll(s.statsPath(source))
	if err != nil {
		return c
	}
	sum, body, ok := strings.Cut(string(text), "\n")
	if !ok || sum != string(sumOf(body)) {
		return c
	}
	lines := bufio.NewScanner(strings.NewReader(body))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if path, e, ok := parseStat(lines.Text()); ok {
			c.old[path] = e
		}
	}
	return c
}

func parseStat(line string) (path string, e statEntry, ok bool) {
	f := strings.SplitN(line, " ", 7)
	if len(f) != 7 {
		return "", e, false
	}
	path, err := strconv.Unquote(f[6])
	if err != nil {
		return "", e, false
	}
	n := make([]int64, 5)
	for i := range n {
		if n[i], err = strconv.ParseInt(f[i], 10, 64); err != nil {
			return "", e, false
		}
	}
	d, err := artifact.ParseDigest(f[5])
	if err != nil {
		return "", e, false
	}
	return path, statEntry{stamp{n[0], n[1], n[2], uint64(n[3]), uint64(n[4])}, d}, true
}

// saveStats writes what this hashing saw. It only saves time, so a failure is
// no error.
func (s *Store) saveStats(source string, c *statCache) {
	if !c.dirty && len(c.current) == len(c.old) {
		return
	}
	paths := make([]string, 0, len(c.current))
	for p := range c.current {
		paths = append(paths, p)
	}
	sort.Strings(paths)
	var b bytes.Buffer
	for _, p := range paths {
		e := c.current[p]
		fmt.Fprintf(&b, "%d %d %d %d %d %s %s\n", e.stamp.size, e.stamp.mtime, e.stamp.ctime,
			int64(e.stamp.inode), int64(e.stamp.dev), e.digest, strconv.Quote(p))
	}
	_ = s.writeFile(s.statsPath(source), []byte(string(sumOf(b.String()))+"\n"+b.String()))
}
