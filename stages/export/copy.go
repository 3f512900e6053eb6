package export

import (
	"io"
	"os"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/regular"
)

// copyFile copies a file in pieces, so that its size does not matter.
func copyFile(from, to string) (err error) {
	src, err := regular.Open(from)
	if err != nil {
		return failure.New(failure.Artifact, "copy model file: %w", err).At(from)
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return failure.New(failure.Artifact, "copy model file: %w", err).At(to)
	}
	defer func() {
		if e := dst.Close(); err == nil {
			err = e
		}
	}()
	if _, err := io.Copy(dst, src); err != nil {
		return failure.New(failure.Artifact, "copy model file: %w", err).At(to)
	}
	return nil
}
