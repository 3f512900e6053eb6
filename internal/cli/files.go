package cli

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/regular"
)

// copyNew writes what r holds to a file that must not be there yet.
func copyNew(ctx context.Context, r io.Reader, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return failure.New(failure.Artifact, "make folder: %w", err)
	}
	f, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return failure.New(failure.Artifact, "write %s: it is already there", to).At(to).WithHint("nothing is overwritten; choose another path or remove it")
	}
	if err != nil {
		return failure.New(failure.Artifact, "write file: %w", err)
	}
	_, err = io.Copy(f, r)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = os.Remove(to)
		return failure.New(failure.Artifact, "write %s: %w", to, err)
	}
	return nil
}

// copyFile copies a file to a place that must be free.
func copyFile(ctx context.Context, from, to string) error {
	f, err := regular.Open(from)
	if err != nil {
		return failure.New(failure.Artifact, "read file: %w", err)
	}
	defer f.Close()
	return copyNew(ctx, f, to)
}
