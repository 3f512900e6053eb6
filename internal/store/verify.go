package store

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/failpoint"
	"github.com/trtship/trtship/internal/failure"
)

// Damage is an artifact whose bytes are not those of its record, or that is not
// there at all.
type Damage struct {
	ID       string
	Problems []string // one line a file
	Evidence string   // where the damaged artifact was moved; empty if it was not there
}

func (d *Damage) Error() string {
	text := fmt.Sprintf("artifact %s is damaged: %s", d.ID, strings.Join(d.Problems, "; "))
	if d.Evidence != "" {
		text += " (kept in " + d.Evidence + ")"
	}
	return text
}

// Open returns an artifact of the store after hashing all of its files. If they
// are not those of the record, the artifact is moved to the damaged folder and
// the error wraps a *Damage; whoever made it can then make it again.
func (s *Store) Open(ctx context.Context, rec artifact.Record) (artifact.Artifact, error) {
	if err := artifact.CheckRecord(rec); err != nil {
		return artifact.Artifact{}, failure.New(failure.Artifact, "open artifact %s: %w", rec.ID(), err)
	}
	dir, ok := s.find(rec)
	if !ok {
		return artifact.Artifact{}, damaged(&Damage{ID: rec.ID(), Problems: []string{"it is not in the store"}})
	}
	err := s.check(ctx, rec, dir)
	if err == nil {
		return artifact.Artifact{Record: rec, Dir: filepath.Join(dir, filesDir)}, nil
	}
	d, ok := errors.AsType[*Damage](err)
	if !ok {
		return artifact.Artifact{}, failure.New(failure.Artifact, "open artifact %s: %w", rec.ID(), err)
	}
	if err := s.setAside(rec, dir, d); err != nil {
		return artifact.Artifact{}, failure.New(failure.Artifact, "move damaged artifact %s aside: %w", rec.ID(), err).
			With("damage", "%s", strings.Join(d.Problems, "; "))
	}
	return artifact.Artifact{}, damaged(d)
}

func damaged(d *Damage) error {
	return failure.New(failure.Artifact, "open artifact: %w", d).
		WithHint("Run the stage that makes it again (`trtship run` does so by itself).")
}

// names are the folder names that an artifact can have, the usual one first.
// The longer ones are for artifacts whose first digits are equal, the last for
// one file under two names.
func names(rec artifact.Record) []string {
	hex := strings.TrimPrefix(string(rec.Digest), "sha256:")
	kind := string(rec.Kind)
	paths := sha256.New()
	for _, f := range rec.Files {
		fmt.Fprintf(paths, "%d:%s", len(f.Path), f.Path)
	}
	return []string{
		kind + "-" + hex[:12],
		kind + "-" + hex[:20],
		kind + "-" + hex,
		fmt.Sprintf("%s-%s-%x", kind, hex, paths.Sum(nil)[:6]),
	}
}

// find returns the folder of an artifact.
func (s *Store) find(rec artifact.Record) (dir string, ok bool) {
	for _, n := range names(rec) {
		dir := filepath.Join(s.root, string(rec.Kind), n)
		if have, err := s.readRecord(dir); err == nil && sameFiles(have, rec) {
			return dir, true
		}
	}
	// A record that cannot be read is damage of whatever has the usual name.
	dir = filepath.Join(s.root, string(rec.Kind), names(rec)[0])
	if _, err := s.readRecord(dir); err != nil && exists(dir) {
		return dir, true
	}
	return "", false
}

// slot returns the folder that an artifact has (have) or is to get. Another run
// may publish the same meanwhile: a name that was free may hold it by now.
func (s *Store) slot(rec artifact.Record) (dir string, have bool, err error) {
	if dir, ok := s.find(rec); ok {
		return dir, true, nil
	}
	for _, n := range names(rec) {
		dir := filepath.Join(s.root, string(rec.Kind), n)
		if !exists(dir) {
			return dir, false, nil
		}
		if other, err := s.readRecord(dir); err != nil || sameFiles(other, rec) {
			return dir, true, nil //nolint:nilerr // a record that cannot be read is found out by check
		}
	}
	return "", false, fmt.Errorf("every name of %s is taken by another artifact", rec.ID())
}

func sameFiles(a, b artifact.Record) bool {
	return a.Kind == b.Kind && a.Digest == b.Digest && slices.Equal(a.Files, b.Files)
}

func (s *Store) readRecord(dir string) (artifact.Record, error) {
	var rec artifact.Record
	text, err := s.readAll(filepath.Join(dir, recordFile))
	if err != nil {
		return rec, err
	}
	if err := json.Unmarshal(text, &rec); err != nil {
		return rec, fmt.Errorf("read %s: %w", recordFile, err)
	}
	return rec, artifact.CheckRecord(rec)
}

// check compares a folder with a record: the files, no more and no less, and
// their bytes. A difference is a *Damage; another error means that it could not
// be found out.
func (s *Store) check(ctx context.Context, rec artifact.Record, dir string) error {
	problems := []string{}
	if have, err := s.readRecord(dir); err != nil {
		if !isDamage(err) {
			return err
		}
		problems = append(problems, recordFile+": "+err.Error())
	} else if !sameFiles(have, rec) {
		problems = append(problems, recordFile+": describes other files")
	}
	base := filepath.Join(dir, filesDir)
	found, err := listFiles(s.fs, base)
	if err != nil && !isDamage(err) {
		return err
	}
	if err != nil {
		problems = append(problems, err.Error())
	}
	known := map[string]bool{}
	for _, f := range rec.Files {
		known[f.Path] = true
	}
	for _, name := range found {
		if !known[name] {
			problems = append(problems, name+": not part of the artifact")
		}
	}
	more, err := s.checkFiles(ctx, rec, base)
	if err != nil {
		return err
	}
	problems = append(problems, more...)
	if len(problems) > 0 {
		return &Damage{ID: rec.ID(), Problems: problems}
	}
	return nil
}

// isDamage tells a file system that answers, with something wrong, from one
// that could not be asked: only the first may cost the artifact.
func isDamage(err error) bool {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	errno, ok := errors.AsType[syscall.Errno](err)
	if !ok {
		return true // what was read is not what should be there
	}
	switch errno {
	case syscall.ENOENT, syscall.EIO, syscall.ENOTDIR, syscall.EISDIR, syscall.ELOOP, syscall.EBADMSG:
		return true
	}
	return errno == needsCleaning
}

func (s *Store) checkFiles(ctx context.Context, rec artifact.Record, base string) ([]string, error) {
	var mu sync.Mutex
	byFile := make([]string, len(rec.Files))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i, f := range rec.Files {
		g.Go(func() error {
			problem, err := s.checkFile(ctx, f, filepath.Join(base, filepath.FromSlash(f.Path)))
			mu.Lock()
			byFile[i] = problem
			mu.Unlock()
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(byFile, func(p string) bool { return p == "" }), nil
}

var verifyFile = failpoint.New("store.verify.file")

func (s *Store) checkFile(ctx context.Context, f artifact.File, path string) (problem string, err error) {
	describe := func(err error) (string, error) {
		if isDamage(err) && ctx.Err() == nil {
			return f.Path + ": " + rootCause(err).Error(), nil
		}
		return "", err
	}
	info, err := s.fs.Lstat(path)
	if err != nil {
		return describe(err)
	}
	if !info.Mode().IsRegular() {
		return f.Path + ": is no regular file", nil
	}
	if info.Size() != f.Size {
		return fmt.Sprintf("%s: has %d bytes instead of %d", f.Path, info.Size(), f.Size), nil
	}
	if err := verifyFile.Hit(); err != nil {
		return "", err
	}
	in, err := s.fs.Open(path)
	if err != nil {
		return describe(err)
	}
	defer in.Close() //nolint:errcheck // read only
	h := sha256.New()
	if _, err := readHash(ctx, in, h); err != nil {
		return describe(err)
	}
	if got := artifact.SumDigest(h.Sum(nil)); got != f.Digest {
		return fmt.Sprintf("%s: has the digest %s instead of %s", f.Path, got.Short(), f.Digest.Short()), nil
	}
	return "", nil
}

// rootCause drops the path that a *fs.PathError repeats.
func rootCause(err error) error {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return p.Err
	}
	return err
}

var asideRenamed = failpoint.New("store.aside.renamed")

// setAside moves a damaged artifact out of the way, once. Another run may have
// done it already. An error that is no *Damage is handed back.
func (s *Store) setAside(rec artifact.Record, dir string, cause error) error {
	d, ok := errors.AsType[*Damage](cause)
	if !ok {
		return cause
	}
	to := filepath.Join(s.root, damagedDir, fmt.Sprintf("%s-%s-%s", rec.ID(), s.now().UTC().Format("20060102T150405Z"), random(6)))
	if err := s.fs.Chmod(dir, 0o755); err != nil { // a read-only folder cannot be moved
		if isNotExist(err) {
			return nil
		}
		return err
	}
	if err := s.fs.Rename(dir, to); err != nil {
		if isNotExist(err) {
			return nil
		}
		return err
	}
	if err := asideRenamed.Hit(); err != nil {
		return err
	}
	d.Evidence = to
	return s.fs.SyncDir(filepath.Dir(to))
}
