package github

import (
	"archive/zip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/trtship/trtship/report"
)

// maxFetch bounds what is fetched to be measured again, packed and unpacked.
const maxFetch = 4 << 30

// Base is a baseline that was found, and where the files of its artifacts are.
type Base struct {
	Report *report.Report // nil: none
	Dir    string         // a folder that may hold them, for a report of the workspace
	// Fetch brings what the baseline's run uploaded of a kind (engine, onnx) into a
	// folder, as <label>-<kind>/<file>; nil where there is no such run.
	Fetch func(ctx context.Context, kind, dir string) error
}

// Fetch downloads the artifact of a name that a run uploaded, and unpacks it into
// the folder dir.
func (a *API) Fetch(ctx context.Context, run int64, name, dir string) error {
	found, err := a.artifacts(ctx, name)
	if err != nil {
		return err
	}
	for _, list := range found {
		for _, art := range list {
			if art.Run.ID == run {
				return a.fetch(ctx, art, dir)
			}
		}
	}
	return fmt.Errorf("run %d has no artifact %s, or no longer", run, name)
}

func (a *API) fetch(ctx context.Context, art listed, dir string) error {
	if art.Size > maxFetch {
		return fmt.Errorf("artifact %s has %s, more than %s", art.Name, report.FormatBytes(art.Size), report.FormatBytes(maxFetch))
	}
	packed, err := os.CreateTemp("", "trtship-artifact-")
	if err != nil {
		return fmt.Errorf("make file for artifact %s: %w", art.Name, err)
	}
	defer os.Remove(packed.Name()) //nolint:errcheck // a temporary file
	defer packed.Close()           //nolint:errcheck // read only from here on
	err = a.downloadTo(ctx, art.ID, min(maxFetch, art.Size+downloadSlack), func() (io.Writer, error) {
		if err := packed.Truncate(0); err != nil {
			return nil, err
		}
		_, err := packed.Seek(0, io.SeekStart)
		return packed, err
	})
	if err != nil {
		return err
	}
	size, err := packed.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	z, err := zip.NewReader(packed, size)
	if err != nil {
		return fmt.Errorf("artifact %s is no zip file: %w", art.Name, err)
	}
	if err := unpackInto(z, dir); err != nil {
		return fmt.Errorf("unpack artifact %s: %w", art.Name, err)
	}
	return nil
}

// unpackInto writes the files of a zip file below dir, and nothing outside of it.
func unpackInto(z *zip.Reader, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close() //nolint:errcheck // only an open folder
	left := int64(maxFetch)
	for _, f := range z.File {
		if f.FileInfo().IsDir() {
			continue
		}
		if err := checkPath(f.Name); err != nil {
			return err
		}
		if !f.Mode().IsRegular() {
			return fmt.Errorf("%q is no regular file", f.Name)
		}
		n, err := unpackOne(root, f, left)
		if err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
		left -= n
	}
	return nil
}

func unpackOne(root *os.Root, f *zip.File, limit int64) (int64, error) {
	name := filepath.FromSlash(f.Name)
	if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return 0, err
	}
	in, err := f.Open()
	if err != nil {
		return 0, err
	}
	defer in.Close() //nolint:errcheck // only read
	out, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return 0, err
	}
	n, err := io.Copy(out, io.LimitReader(in, limit+1))
	if err == nil && n > limit {
		err = fmt.Errorf("more than %d bytes in all", int64(maxFetch))
	}
	return n, errors.Join(err, out.Close())
}
