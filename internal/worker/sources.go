package worker

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"sync"
)

//go:embed python/*.py
var sources embed.FS

// SourcesDigest returns a short digest of the embedded Python sources, so that
// a cache key changes with them.
var SourcesDigest = sync.OnceValue(func() string {
	sum := sha256.New()
	for _, name := range sourceNames() {
		text, err := sources.ReadFile("python/" + name)
		if err != nil {
			panic(err) // the file system is part of the program
		}
		fmt.Fprintf(sum, "%s %d\n", name, len(text))
		sum.Write(text)
	}
	return hex.EncodeToString(sum.Sum(nil))[:12]
})

// engineModules are the modules that run TensorRT engines; they need nothing of
// the rest of the child.
var engineModules = []string{"cuda.py", "trt_versions.py", "trt_build.py", "trt_engine.py", "trtship_errors.py"}

// WriteEngineSources puts the modules that run TensorRT engines into a folder:
// the stand-in for Triton's tensorrt backend runs plans with them.
func WriteEngineSources(dir string) error {
	for _, name := range engineModules {
		text, err := sources.ReadFile("python/" + name)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), text, 0o644)
		}
		if err != nil {
			return fmt.Errorf("write Python sources: %w", err)
		}
	}
	return nil
}

func sourceNames() []string {
	entries, err := sources.ReadDir("python")
	if err != nil {
		panic(err)
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names // ReadDir sorts
}

// writeSources puts the embedded sources into a fresh private folder.
func writeSources() (dir string, err error) {
	dir, err = os.MkdirTemp("", "trtship-python-")
	if err != nil {
		return "", fmt.Errorf("make folder for the Python sources: %w", err)
	}
	for _, name := range sourceNames() {
		text, err := sources.ReadFile("python/" + name)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), text, 0o600)
		}
		if err != nil {
			_ = os.RemoveAll(dir)
			return "", fmt.Errorf("write Python sources: %w", err)
		}
	}
	return dir, nil
}
