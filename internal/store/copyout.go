package store

import (
	"context"
	"crypto/sha256"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/failpoint"
	"github.com/trtship/trtship/internal/failure"
)

var copyOutLinked = failpoint.New("store.copyout.linked")

// CopyOut writes an artifact to a place outside the store. With main set, dest
// is the path of that file and the artifact's other files go beside it under
// their own names (a model names its external data); otherwise dest is a new
// folder of all files. Nothing is ever overwritten: what is there already is
// exit code 11, before anything is written.
func (s *Store) CopyOut(ctx context.Context, a artifact.Artifact, dest, main string) error {
	target := func(path string) string { return filepath.Join(dest, filepath.FromSlash(path)) }
	if main != "" {
		target = func(path string) string {
			if path == main {
				return dest
			}
			return filepath.Join(filepath.Dir(dest), filepath.FromSlash(path))
		}
	}
	taken := []string{dest}
	for _, f := range a.Files {
		taken = append(taken, target(f.Path))
	}
	for _, p := range taken {
		if _, err := os.Lstat(p); err == nil {
			return failure.New(failure.Artifact, "write %s: it is already there", p).At(p).
				WithHint("Nothing is overwritten; choose another path or remove it.")
		}
	}
	for _, f := range a.Files {
		if err := s.copyOutFile(ctx, f, filepath.Join(a.Dir, filepath.FromSlash(f.Path)), target(f.Path)); err != nil {
			if errors.Is(err, fs.ErrExist) {
				return failure.New(failure.Artifact, "write %s: it is already there", target(f.Path)).At(target(f.Path))
			}
			return failure.New(failure.Artifact, "write %s: %w", target(f.Path), rootCause(err)).At(target(f.Path))
		}
	}
	return nil
}

// copyOutFile copies, compares the digest on the way, and gives the file its
// name last, by a link that fails if the name is taken.
func (s *Store) copyOutFile(ctx context.Context, f artifact.File, from, to string) error {
	if err := s.fs.MkdirAll(filepath.Dir(to)); err != nil {
		return err
	}
	in, err := s.fs.Open(from)
	if err != nil {
		return err
	}
	defer in.Close() //nolint:errcheck // read only
	tmp := filepath.Join(filepath.Dir(to), ".tmp-"+random(8))
	out, err := s.fs.Create(tmp)
	if err != nil {
		return err
	}
	defer s.fs.Remove(tmp) //nolint:errcheck // the link keeps the file
	h := sha256.New()
	_, err = copyHash(ctx, out, in, h)
	if err == nil {
		err = out.Sync()
	}
	if cerr := out.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	if artifact.SumDigest(h.Sum(nil)) != f.Digest {
		return errors.New("the artifact changed while it was copied")
	}
	if err := s.linkNew(tmp, to); err != nil {
		return err
	}
	return copyOutLinked.Hit()
}

// linkNew gives a file a new name that must be free. File systems without hard
// links get a rename, after a look.
func (s *Store) linkNew(tmp, to string) error {
	err := s.fs.Link(tmp, to)
	if err == nil || errors.Is(err, fs.ErrExist) {
		return err
	}
	if exists(to) {
		return fs.ErrExist
	}
	return s.fs.Rename(tmp, to)
}

// Free returns the bytes that this user may still write to the store's disk.
func (s *Store) Free() (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(s.root, &st); err != nil {
		return 0, failure.New(failure.Artifact, "ask for free space: %w", err).At(s.root)
	}
	return int64(st.Bavail) * int64(st.Bsize), nil //nolint:gosec // a disk has fewer than 2^63 bytes
}

// RequireFree fails unless so many bytes are free.
func (s *Store) RequireFree(need int64) error {
	free, err := s.Free()
	if err != nil {
		return err
	}
	if free < need {
		return failure.New(failure.Artifact, "start: the store's disk has %d MiB free and about %d MiB are needed", free>>20, need>>20).
			At(s.root).WithHint("Make room (`trtship artifacts gc`) or set TRTSHIP_STORE to a larger disk.")
	}
	return nil
}
