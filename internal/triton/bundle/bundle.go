// Package bundle packs a model of a Triton repository into one file that any
// tar reads, the same bytes for the same model, and brings it back verified.
package bundle

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/regular"
	"github.com/trtship/trtship/internal/triton"
)

// Suffix is how the files' names end.
const Suffix = "-model-repository.tar.gz"

// Limits of a bundle that is read. Weights compress badly, but a model may hold
// zeros, so the ratio alone says nothing.
const (
	maxFiles    = 100_000
	maxUnpacked = 64 << 30
)

// Name is the file's name for a model.
func Name(model string) string { return model + Suffix }

// Summary is what a bundle holds.
type Summary struct {
	Model  string `json:"model"`
	Digest string `json:"digest"` // of the packed bytes, "sha256:" and hex
	Size   int64  `json:"size"`   // packed, in bytes
	Files  int    `json:"files"`
}

// Write packs one model of a repository, with all its versions, its manifest and
// its provenance, into the new file at path. Every file is held to the manifest
// before. Names are sorted, and owners, times and permissions are fixed.
// statement, if not nil, takes the place of the provenance beside the manifest.
func Write(ctx context.Context, repository, model, path string, statement []byte, progress func(file string, size int64)) (Summary, error) {
	dir := filepath.Join(repository, model)
	found, err := triton.Verify(ctx, dir)
	if err != nil {
		return Summary{}, err
	}
	if len(found.Problems) > 0 {
		return Summary{}, failure.New(failure.Artifact, "pack %s: %s", model, triton.Problems(found)).At(dir).WithHint("package the model again")
	}
	s := Summary{Model: model}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return s, failure.New(failure.Artifact, "pack %s: %w", model, err)
	}
	sum := sha256.New()
	z := gzip.NewWriter(io.MultiWriter(f, sum))
	w := tar.NewWriter(z)
	without := ""
	if statement != nil {
		without = triton.ProvenanceFile
	}
	s.Files, err = pack(ctx, w, dir, model, without, progress)
	if err == nil && statement != nil {
		s.Files++
		if err = w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: model + "/" + triton.ProvenanceFile, Size: int64(len(statement)), Mode: 0o644, Format: tar.FormatPAX}); err == nil {
			_, err = w.Write(statement)
		}
	}
	err = errors.Join(err, w.Close(), z.Close())
	if info, serr := f.Stat(); serr == nil {
		s.Size = info.Size()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		_ = os.Remove(path)
		return s, failure.New(failure.Artifact, "pack %s: %w", model, err)
	}
	s.Digest = "sha256:" + hex.EncodeToString(sum.Sum(nil))
	return s, nil
}

// pack writes the folders and files of a model in the order of their names, but
// the file without.
func pack(ctx context.Context, w *tar.Writer, dir, model, without string, progress func(string, int64)) (int, error) {
	root, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return 0, err
	}
	var paths []string
	err = filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() && !e.Type().IsRegular() {
			err = fmt.Errorf("%s is no regular file", path)
		}
		paths = append(paths, path)
		return err
	})
	if err != nil {
		return 0, err
	}
	slices.Sort(paths)
	files := 0
	for _, path := range paths {
		if err := ctx.Err(); err != nil {
			return files, err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return files, err
		}
		if rel == without {
			continue
		}
		name := filepath.ToSlash(filepath.Join(model, rel))
		info, err := os.Lstat(path)
		if err != nil {
			return files, err
		}
		if info.IsDir() {
			if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o755, Format: tar.FormatPAX}); err != nil {
				return files, err
			}
			continue
		}
		files++
		if err := packFile(w, path, name); err != nil {
			return files, err
		}
		if progress != nil {
			progress(name, info.Size())
		}
	}
	return files, nil
}

func packFile(w *tar.Writer, path, name string) error {
	f, err := regular.Open(path)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // only read
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: info.Size(), Mode: 0o644, Format: tar.FormatPAX}); err != nil {
		return err
	}
	_, err = io.Copy(w, f) // the writer refuses a file that grew, and Close one that shrank
	return err
}

// Read unpacks a bundle into a repository and returns the model's name. digest,
// if given, is what the packed bytes must have. Every file is held to the
// model's manifest, and to its provenance if it has one. A model that is there
// is refused, and nothing half-written is left.
func Read(ctx context.Context, path, digest, repository string) (string, error) {
	bad := func(format string, args ...any) error {
		return failure.New(failure.Artifact, "unpack %s: %w", filepath.Base(path), fmt.Errorf(format, args...)).
			WithHint("it is not what `trtship publish` wrote, or was damaged on the way")
	}
	if err := os.MkdirAll(repository, 0o755); err != nil {
		return "", failure.New(failure.Artifact, "unpack: %w", err)
	}
	scratch, err := os.MkdirTemp(repository, ".pull-*")
	if err != nil {
		return "", failure.New(failure.Artifact, "unpack: %w", err)
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	f, err := regular.Open(path)
	if err != nil {
		return "", failure.New(failure.Artifact, "unpack: %w", err)
	}
	defer f.Close() //nolint:errcheck // only read
	if digest != "" {
		sum := sha256.New()
		if _, err := io.Copy(sum, f); err != nil {
			return "", failure.New(failure.Artifact, "unpack: %w", err)
		}
		if got := "sha256:" + hex.EncodeToString(sum.Sum(nil)); got != digest {
			return "", bad("its digest is %s, want %s", got, digest)
		}
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return "", failure.New(failure.Artifact, "unpack: %w", err)
		}
	}
	model, err := unpack(ctx, f, scratch)
	if err != nil {
		return "", bad("%w", err)
	}
	found, err := triton.Verify(ctx, filepath.Join(scratch, model))
	if err != nil {
		return "", err
	}
	if len(found.Problems) > 0 {
		return "", bad("it is not what its manifest and its provenance say: %s", triton.Problems(found))
	}
	dest := filepath.Join(repository, model)
	if _, err := os.Lstat(dest); err == nil {
		return "", failure.New(failure.Artifact, "unpack: %s is already there", dest).At(dest).WithHint("nothing is overwritten; choose another repository or remove it")
	}
	if err := os.Rename(filepath.Join(scratch, model), dest); err != nil {
		return "", failure.New(failure.Artifact, "unpack: %w", err)
	}
	return model, nil
}

// unpack writes what a bundle holds below dir. Anything but files and folders of
// one model is refused.
func unpack(ctx context.Context, r io.Reader, dir string) (model string, err error) {
	z, err := gzip.NewReader(r)
	if err != nil {
		return "", err
	}
	t := tar.NewReader(z)
	total := int64(0)
	for n := 0; ; n++ {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return "", err
		}
		if err := ctx.Err(); err != nil {
			return "", err
		}
		name := strings.TrimSuffix(h.Name, "/")
		top, rest, _ := strings.Cut(name, "/")
		if model == "" {
			model = top
		}
		total += h.Size
		switch {
		case n == maxFiles:
			return "", fmt.Errorf("it holds more than %d entries", maxFiles)
		case total > maxUnpacked:
			return "", fmt.Errorf("it holds more than %d bytes", int64(maxUnpacked))
		case !filepath.IsLocal(name) || strings.ContainsAny(name, "\\\x00") || top == "." || top == "..":
			return "", fmt.Errorf("the name %q leads out of the model's folder", h.Name)
		case top != model:
			return "", fmt.Errorf("it holds %q beside %q, want one model", top, model)
		}
		path := filepath.Join(dir, filepath.FromSlash(name))
		switch h.Typeflag {
		case tar.TypeDir:
			err = os.MkdirAll(path, 0o755)
		case tar.TypeReg:
			if rest == "" {
				return "", fmt.Errorf("%q lies outside of a model's folder", h.Name)
			}
			err = unpackFile(t, path)
		default:
			return "", fmt.Errorf("%q is neither a file nor a folder", h.Name)
		}
		if err != nil {
			return "", err
		}
	}
	if model == "" {
		return "", errors.New("it is empty")
	}
	// What follows the archive must be nothing, and the sums of gzip must hold.
	if _, err := io.Copy(io.Discard, io.LimitReader(z, 1<<20)); err != nil {
		return "", err
	}
	return model, nil
}

func unpackFile(r io.Reader, path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Close())
}
