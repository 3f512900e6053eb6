package server

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/trtship/trtship/internal/regular"
	"github.com/trtship/trtship/internal/triton/backends"
	"github.com/trtship/trtship/internal/worker"
)

// writeFile is a variable so that a test can fill the disk.
var writeFile = os.WriteFile

// assemble makes the private backend folder of a server that has only the
// python backend, and returns it. Triton refuses a backend library that is a
// symbolic link out of its folder, so libraries are hard links or copies.
func assemble(in Installation, scratch string) (string, error) {
	root := filepath.Join(scratch, "backends")
	python := filepath.Join(root, "python")
	if err := os.MkdirAll(python, 0o755); err != nil {
		return "", fmt.Errorf("assemble backends: %w", err)
	}
	from := filepath.Join(in.wheel, "backends", "python")
	stub := filepath.Join(in.wheel, "python_backend_stubs", in.python.Version, "triton_python_backend_stub")
	for _, src := range []string{
		filepath.Join(from, "libtriton_python.so"),
		filepath.Join(from, "triton_python_backend_utils.py"),
		stub,
	} {
		if err := place(src, filepath.Join(python, filepath.Base(src))); err != nil {
			return "", fmt.Errorf("assemble backends: %w", err)
		}
	}
	if err := os.Chmod(filepath.Join(python, filepath.Base(stub)), 0o755); err != nil && !errors.Is(err, fs.ErrPermission) {
		return "", fmt.Errorf("assemble backends: %w", err)
	}
	err := fs.WalkDir(backends.FS, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".py") {
			return err
		}
		b, err := fs.ReadFile(backends.FS, path)
		if err != nil {
			return err
		}
		full := filepath.Join(root, filepath.FromSlash(path))
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			return err
		}
		return writeFile(full, b, 0o644)
	})
	if err == nil {
		err = worker.WriteEngineSources(filepath.Join(root, "tensorrt"))
	}
	if err != nil {
		return "", fmt.Errorf("assemble backends: %w", err)
	}
	return root, nil
}

// interpreter makes a small virtual environment for the stub of the python
// backend, which takes its packages from the first python3 on PATH and hears no
// PYTHONPATH. It returns the folder of that python3.
func interpreter(in Installation, scratch string) (string, error) {
	root := filepath.Join(scratch, "python")
	bin := filepath.Join(root, "bin")
	site := filepath.Join(root, "lib", "python"+in.python.Version, "site-packages")
	for _, dir := range []string{bin, site} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return "", fmt.Errorf("assemble interpreter: %w", err)
		}
	}
	paths := append(append([]string{}, in.overlay...), in.python.Site...)
	files := map[string]string{
		filepath.Join(root, "pyvenv.cfg"):  "home = " + filepath.Dir(in.python.Base) + "\ninclude-system-site-packages = false\n",
		filepath.Join(site, "trtship.pth"): strings.Join(paths, "\n") + "\n",
	}
	for name, text := range files {
		if err := writeFile(name, []byte(text), 0o644); err != nil {
			return "", fmt.Errorf("assemble interpreter: %w", err)
		}
	}
	link := filepath.Join(bin, "python3")
	if err := os.Symlink(in.python.Base, link); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("assemble interpreter: %w", err)
	}
	return bin, nil
}

// place puts src at dst as a hard link, or as a copy on another file system. What
// is at dst from a start before is replaced, never written to: it may be a link
// to src, and writing would empty the installation's own file.
func place(src, dst string) error {
	if err := os.Remove(dst); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Link(src, dst); err == nil {
		return nil
	}
	in, err := regular.Open(src)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	out, err := os.OpenFile(dst, os.O_CREATE|os.O_WRONLY|os.O_EXCL, info.Mode().Perm()|0o200)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		return errors.Join(err, out.Close())
	}
	return out.Close()
}
