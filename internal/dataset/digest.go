package dataset

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"slices"

	"golang.org/x/sync/errgroup"
)

// hashFiles returns a digest of the files' contents that does not depend on
// their names, places or order.
func hashFiles(ctx context.Context, files []string, progress func(done, total int64)) (string, error) {
	sums := make([][32]byte, len(files))
	g, inner := errgroup.WithContext(ctx)
	g.SetLimit(2)
	for i, f := range files {
		if inner.Err() != nil {
			break
		}
		progress(int64(i), int64(len(files)))
		g.Go(func() error {
			sum, err := hashFile(inner, f)
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
	progress(int64(len(files)), int64(len(files)))
	slices.SortFunc(sums, func(a, b [32]byte) int { return slices.Compare(a[:], b[:]) })
	h := sha256.New()
	for _, s := range sums {
		h.Write(s[:])
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), nil
}

func hashFile(ctx context.Context, path string) ([32]byte, error) {
	var sum [32]byte
	f, err := os.Open(path)
	if err != nil {
		return sum, refuse("read calibration data: %w", err).At(path)
	}
	defer f.Close() //nolint:errcheck // read only
	h := sha256.New()
	buf := make([]byte, 1<<20)
	for {
		if err := ctx.Err(); err != nil {
			return sum, err
		}
		n, err := f.Read(buf)
		h.Write(buf[:n])
		if err == io.EOF {
			return [32]byte(h.Sum(nil)), nil
		}
		if err != nil {
			return sum, refuse("read calibration data: %w", err).At(path)
		}
	}
}
