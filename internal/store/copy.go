package store

import (
	"context"
	"crypto/sha256"
	"fmt"
	"hash"
	"io"
	"path/filepath"

	"github.com/trtship/trtship/internal/artifact"
)

// copyOne copies one file and hashes what it wrote.
func (s *Store) copyOne(ctx context.Context, from, root, rel string) (artifact.File, error) {
	if err := artifact.CheckPath(rel); err != nil {
		return artifact.File{}, err
	}
	to := filepath.Join(root, filepath.FromSlash(rel))
	if err := s.fs.MkdirAll(filepath.Dir(to)); err != nil {
		return artifact.File{}, err
	}
	in, err := s.fs.Open(from)
	if err != nil {
		return artifact.File{}, err
	}
	defer in.Close() //nolint:errcheck // read only
	info, err := in.Stat()
	if err != nil {
		return artifact.File{}, err
	}
	if !info.Mode().IsRegular() {
		return artifact.File{}, fmt.Errorf("%s is no regular file", from)
	}
	out, err := s.fs.Create(to)
	if err != nil {
		return artifact.File{}, err
	}
	h := sha256.New()
	n, err := copyHash(ctx, out, in, h)
	if err == nil {
		err = out.Sync()
	}
	if cerr := out.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = s.fs.Chmod(to, 0o444)
	}
	return artifact.File{Path: rel, Size: n, Digest: artifact.SumDigest(h.Sum(nil))}, err
}

const (
	chunkSize = 1 << 20
	flushSize = 32 << 20 // bytes after which the kernel is asked to start writing
)

// copyHash copies in to out while another goroutine hashes the same bytes, and
// lets the disk begin early, so that the final sync has little left to do.
func copyHash(ctx context.Context, out File, in io.Reader, h hash.Hash) (int64, error) {
	const buffers = 4
	free := make(chan []byte, buffers)
	for range buffers {
		free <- make([]byte, chunkSize)
	}
	full := make(chan []byte, buffers)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for b := range full {
			h.Write(b)
			free <- b[:cap(b)]
		}
	}()
	n, err := copyChunks(ctx, out, in, free, full)
	close(full)
	<-done
	return n, err
}

func copyChunks(ctx context.Context, out File, in io.Reader, free, full chan []byte) (total int64, err error) {
	var flushed int64
	for {
		if err := context.Cause(ctx); err != nil {
			return total, err
		}
		b := <-free
		n, rerr := io.ReadFull(in, b)
		if n > 0 {
			w, werr := out.Write(b[:n])
			if werr == nil && w < n {
				werr = io.ErrShortWrite
			}
			if werr == nil {
				werr = copyChunk.Hit()
			}
			if werr != nil {
				return total, werr
			}
			total += int64(n)
			full <- b[:n]
		}
		if total-flushed >= flushSize {
			startWriteback(out, flushed, total-flushed)
			flushed = total
		}
		if rerr == io.EOF || rerr == io.ErrUnexpectedEOF {
			return total, nil
		}
		if rerr != nil {
			return total, rerr
		}
	}
}
