// Command store measures how long the store takes to put a file, beside what a
// careful person would type: cp, sync and sha256sum of the same file. The two
// alternate, and the ratio of the medians is what counts.
//
//	go run ./bench/store [-mb 1024] [-rounds 5] [-dir DIR] [-o docs/verification/bench-store.json]
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/proc"
	"github.com/trtship/trtship/internal/store"
)

// result is the document that is written.
type result struct {
	What        string    `json:"what"`
	Bytes       int64     `json:"bytes"`
	Cores       int       `json:"cores"`
	Go          string    `json:"go"`
	PutSeconds  []float64 `json:"put_seconds"`
	PeerSeconds []float64 `json:"cp_sync_sha256sum_seconds"`
	PubSeconds  []float64 `json:"publish_from_scratch_seconds"`
	OpenSeconds []float64 `json:"open_and_verify_seconds"`
	Ratio       float64   `json:"ratio_of_medians"`
	Aim         float64   `json:"aim_at_most"`
	Held        bool      `json:"held"`
}

func main() {
	mb := flag.Int64("mb", 1024, "size of the file in MiB")
	rounds := flag.Int("rounds", 5, "rounds, each with every contestant")
	dir := flag.String("dir", os.TempDir(), "folder on the disk to measure")
	out := flag.String("o", "", "file for the result as JSON")
	flag.Parse()
	r, err := measure(context.Background(), *mb<<20, *rounds, *dir)
	if err == nil {
		err = write(r, *out)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench/store:", err)
		os.Exit(1)
	}
}

func write(r result, path string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	fmt.Printf("put %.2f s, cp+sync+sha256sum %.2f s, ratio %.2f (aim: at most %.1f)\n", median(r.PutSeconds), median(r.PeerSeconds), r.Ratio, r.Aim)
	if path == "" {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}

func measure(ctx context.Context, size int64, rounds int, base string) (result, error) {
	r := result{What: "store put of one file, against cp + sync + sha256sum of it", Bytes: size, Cores: runtime.NumCPU(), Go: runtime.Version(), Aim: 1.2}
	dir, err := os.MkdirTemp(base, "trtship-bench-")
	if err != nil {
		return r, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary folder
	src := filepath.Join(dir, "model.onnx")
	if err := fill(src, size); err != nil {
		return r, err
	}
	for range rounds {
		for _, c := range []struct {
			into *[]float64
			do   func(context.Context, string, string) (time.Duration, error)
		}{{&r.PeerSeconds, peer}, {&r.PutSeconds, put}, {&r.PubSeconds, publish}, {&r.OpenSeconds, open}} {
			work := filepath.Join(dir, "work")
			if err := os.Mkdir(work, 0o755); err != nil {
				return r, err
			}
			d, err := c.do(ctx, src, work)
			if err = errors.Join(err, removeWritable(work)); err != nil {
				return r, err
			}
			*c.into = append(*c.into, d.Seconds())
		}
	}
	r.Ratio = median(r.PutSeconds) / median(r.PeerSeconds)
	r.Held = r.Ratio <= r.Aim
	return r, nil
}

// fill writes bytes that no disk can compress.
func fill(path string, size int64) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	rng := rand.NewChaCha8([32]byte{1})
	b := make([]byte, 1<<20)
	for n := int64(0); n < size && err == nil; n += int64(len(b)) {
		_, _ = rng.Read(b) // never fails
		_, err = f.Write(b[:min(int64(len(b)), size-n)])
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

func median(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	if len(s) == 0 {
		return 0
	}
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

func peer(ctx context.Context, src, work string) (time.Duration, error) {
	start := time.Now()
	_, err := proc.Output(ctx, proc.Command{
		Path: "/bin/sh", Args: []string{"-c", `cp "$1" "$2" && sync "$2" && sha256sum "$2"`, "sh", src, filepath.Join(work, "copy")},
		Env: []string{"PATH=/usr/bin:/bin"},
	})
	return time.Since(start), err
}

func put(ctx context.Context, src, work string) (time.Duration, error) {
	st, err := store.Open(ctx, work)
	if err != nil {
		return 0, err
	}
	start := time.Now()
	_, err = st.Put(ctx, store.Draft{Kind: artifact.ONNX}, store.Source{Path: src})
	d := time.Since(start)
	return d, errors.Join(err, st.Close())
}

// publish measures what stages do: the file is in scratch already.
func publish(ctx context.Context, src, work string) (time.Duration, error) {
	st, err := store.Open(ctx, work)
	if err != nil {
		return 0, err
	}
	dir, err := st.Scratch("bench")
	if err == nil {
		err = copyFile(src, filepath.Join(dir, "model.onnx"))
	}
	start := time.Now()
	if err == nil {
		_, err = st.Publish(ctx, store.Draft{Kind: artifact.ONNX}, dir)
	}
	d := time.Since(start)
	return d, errors.Join(err, st.Close())
}

// open measures a use: every byte is hashed again.
func open(ctx context.Context, src, work string) (time.Duration, error) {
	st, err := store.Open(ctx, work)
	if err != nil {
		return 0, err
	}
	a, err := st.Put(ctx, store.Draft{Kind: artifact.ONNX}, store.Source{Path: src})
	start := time.Now()
	if err == nil {
		_, err = st.Open(ctx, a.Record)
	}
	d := time.Since(start)
	return d, errors.Join(err, st.Close())
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close() //nolint:errcheck // read only
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = out.ReadFrom(in)
	return errors.Join(err, out.Close())
}

// removeWritable removes a folder with read-only folders in it.
func removeWritable(dir string) error {
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			err = os.Chmod(path, 0o755) //nolint:gosec // to be removed
		}
		return err
	})
	return errors.Join(err, os.RemoveAll(dir))
}
