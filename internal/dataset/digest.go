package dataset

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/trtship/trtship/internal/regular"
)

// hashFiles returns a digest of the files' contents that does not depend on
// their names, places or order.
func hashFiles(ctx context.Context, files *fileList, progress func(done, total int64)) (string, error) {
	sums := make([][32]byte, files.len())
	g, inner := errgroup.WithContext(ctx)
	g.SetLimit(2)
	for i := range files.len() {
		if inner.Err() != nil {
			break
		}
		progress(int64(i), int64(files.len()))
		g.Go(func() error {
			sum, err := hashFile(inner, files.at(i))
			sums[i] = sum
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return "", err
	}
	if err := ctx.Err(); err != nil {
		return "", err
	}
	progress(int64(files.len()), int64(files.len()))
	slices.SortFunc(sums, func(a, b [32]byte) int { return slices.Compare(a[:], b[:]) })
	h := sha256.New()
	for _, s := range sums {
		h.Write(s[:])
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), nil
}

// buffers are what files are read through: many small files must not make
// garbage of a buffer each.
var buffers = sync.Pool{New: func() any { return new([256 << 10]byte) }}

func hashFile(ctx context.Context, path string) ([32]byte, error) {
	var sum [32]byte
	f, err := regular.Open(path)
	if err != nil {
		return sum, refuse("read calibration data: %w", err).At(path)
	}
	defer f.Close() //nolint:errcheck // read only
	h := sha256.New()
	buf, _ := buffers.Get().(*[256 << 10]byte)
	defer buffers.Put(buf)
	for {
		if err := ctx.Err(); err != nil {
			return sum, err
		}
		n, err := f.Read(buf[:])
		h.Write(buf[:n])
		if err == io.EOF {
			return [32]byte(h.Sum(nil)), nil
		}
		if err != nil {
			return sum, refuse("read calibration data: %w", err).At(path)
		}
	}
}

// fileList holds paths below one folder as a single text: the paths of a large
// set, each a string of its own, would be most of what a run keeps in memory.
type fileList struct {
	root string
	text []byte
	ends []uint32
}

func (l *fileList) add(path string) {
	if !strings.HasPrefix(path, l.root) {
		all := *l
		*l = fileList{}
		for i := range all.len() {
			l.add(all.at(i))
		}
	}
	l.text = append(l.text, path[len(l.root):]...)
	l.ends = append(l.ends, uint32(len(l.text)))
}

func (l *fileList) len() int { return len(l.ends) }

func (l *fileList) at(i int) string {
	from := uint32(0)
	if i > 0 {
		from = l.ends[i-1]
	}
	return l.root + string(l.text[from:l.ends[i]])
}
