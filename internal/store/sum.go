package store

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"

	"github.com/trtship/trtship/internal/artifact"
)

// Sum returns the digest that the files below dir have as an artifact, and reads
// no more than size bytes for it: other sizes are an error. Nothing is copied.
func (s *Store) Sum(ctx context.Context, dir string, size int64) (artifact.Digest, error) {
	sources, err := s.expand(Source{Path: dir})
	if err != nil {
		return "", err
	}
	var files []artifact.File
	left := size
	for _, src := range sources {
		f, err := s.sumOne(ctx, src, left)
		if err != nil {
			return "", fmt.Errorf("%s: %w", src.As, err)
		}
		left -= f.Size
		files = append(files, f)
	}
	if left != 0 {
		return "", fmt.Errorf("its files have %d bytes, want %d", size-left, size)
	}
	return artifact.DigestOf(files), nil
}

func (s *Store) sumOne(ctx context.Context, src Source, limit int64) (artifact.File, error) {
	in, err := s.fs.Open(src.Path)
	if err != nil {
		return artifact.File{}, err
	}
	defer in.Close() //nolint:errcheck // read only
	h := sha256.New()
	n, err := readHash(ctx, io.LimitReader(in, limit+1), h)
	if err == nil && n > limit {
		err = fmt.Errorf("it has more than the %d bytes that are left of the artifact's size", limit)
	}
	return artifact.File{Path: src.As, Size: n, Digest: artifact.SumDigest(h.Sum(nil))}, err
}
