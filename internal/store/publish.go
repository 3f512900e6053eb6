package store

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"path/filepath"
	"runtime"
	"sort"
	"sync"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/failpoint"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/regular"
)

var (
	publishStaged  = failpoint.New("store.publish.staged")
	publishHashed  = failpoint.New("store.publish.hashed")
	publishRecord  = failpoint.New("store.publish.recorded")
	publishSynced  = failpoint.New("store.publish.synced")
	publishRenamed = failpoint.New("store.publish.renamed")
	publishDone    = failpoint.New("store.publish.done")
	copyChunk      = failpoint.New("store.copy.chunk")
)

// Draft is what the publisher knows about an artifact before it is hashed.
type Draft struct {
	Kind    artifact.Kind
	Label   string
	Stage   string
	Parents []string
	Meta    map[string]string
}

// Publish moves the files below dir into the store as one artifact and returns
// it. dir lies in this process's scratch and is gone afterwards; the files of
// any other folder are copied. Symbolic links and anything else that is no
// regular file are refused; empty folders are dropped. Publishing bytes that
// are there already gives the artifact that is there.
func (s *Store) Publish(ctx context.Context, d Draft, dir string) (artifact.Artifact, error) {
	if !s.inScratch(dir) {
		return s.Put(ctx, d, Source{Path: dir})
	}
	staging, err := s.Scratch("publish")
	if err != nil {
		return artifact.Artifact{}, err
	}
	defer removeAll(s.fs, staging) //nolint:errcheck // swept later
	if err := s.fs.Rename(dir, filepath.Join(staging, filesDir)); err != nil {
		return artifact.Artifact{}, publishError(d, err)
	}
	return s.settle(ctx, d, staging)
}

// Source is a file or folder outside the store that becomes part of an
// artifact. As is its slash-separated name there; if it is empty, a file keeps
// its name and the files of a folder lie at the artifact's top.
type Source struct {
	Path string
	As   string
}

// Put copies files and folders into the store as one artifact. The sources stay
// as they are. A source that is a symbolic link is followed; links inside a
// folder are refused.
func (s *Store) Put(ctx context.Context, d Draft, sources ...Source) (artifact.Artifact, error) {
	staging, err := s.Scratch("put")
	if err != nil {
		return artifact.Artifact{}, err
	}
	defer removeAll(s.fs, staging) //nolint:errcheck // swept later
	files, err := s.copySources(ctx, sources, filepath.Join(staging, filesDir))
	if err != nil {
		return artifact.Artifact{}, publishError(d, err)
	}
	return s.settleHashed(ctx, d, staging, files)
}

func (s *Store) copySources(ctx context.Context, sources []Source, to string) ([]artifact.File, error) {
	if err := s.fs.Mkdir(to); err != nil {
		return nil, err
	}
	var files []artifact.File
	for _, src := range sources {
		pairs, err := s.expand(src)
		if err != nil {
			return nil, err
		}
		for _, p := range pairs {
			f, err := s.copyOne(ctx, p.Path, to, p.As)
			if err != nil {
				return nil, err
			}
			files = append(files, f)
		}
	}
	sort.Slice(files, func(i, j int) bool { return files[i].Path < files[j].Path })
	return files, nil
}

// expand turns a source into one source for each file.
func (s *Store) expand(src Source) ([]Source, error) {
	path, err := filepath.EvalSymlinks(src.Path)
	if err != nil {
		return nil, err
	}
	info, err := s.fs.Lstat(path)
	if err != nil {
		return nil, err
	}
	if err := regular.Check(path); err != nil { // opening it could wait for ever
		return nil, err
	}
	if !info.IsDir() {
		as := src.As
		if as == "" {
			as = filepath.Base(src.Path)
		}
		return []Source{{Path: path, As: as}}, nil
	}
	names, err := listFiles(s.fs, path)
	if err != nil {
		return nil, err
	}
	out := make([]Source, 0, len(names))
	for _, name := range names {
		as := name
		if src.As != "" {
			as = src.As + "/" + name
		}
		out = append(out, Source{Path: filepath.Join(path, filepath.FromSlash(name)), As: as})
	}
	return out, nil
}

// settle hashes, records and renames what lies in staging/files.
func (s *Store) settle(ctx context.Context, d Draft, staging string) (artifact.Artifact, error) {
	if err := publishStaged.Hit(); err != nil {
		return artifact.Artifact{}, publishError(d, err)
	}
	dir := filepath.Join(staging, filesDir)
	if _, err := dropEmpty(s.fs, dir); err != nil {
		return artifact.Artifact{}, publishError(d, err)
	}
	files, err := s.sealFiles(ctx, dir)
	if err != nil {
		return artifact.Artifact{}, publishError(d, err)
	}
	return s.settleHashed(ctx, d, staging, files)
}

func (s *Store) settleHashed(ctx context.Context, d Draft, staging string, files []artifact.File) (artifact.Artifact, error) {
	rec := artifact.Record{
		Kind: d.Kind, Label: d.Label, Digest: artifact.DigestOf(files), Files: files,
		Stage: d.Stage, Parents: d.Parents, Meta: d.Meta,
	}
	for _, f := range files {
		rec.Size += f.Size
	}
	err := artifact.CheckRecord(rec)
	if err == nil {
		err = publishHashed.Hit()
	}
	if err == nil {
		err = s.finish(rec, staging)
	}
	if err != nil {
		return artifact.Artifact{}, publishError(d, err)
	}
	dir, err := s.place(ctx, rec, staging)
	if err != nil {
		return artifact.Artifact{}, publishError(d, err)
	}
	return artifact.Artifact{Record: rec, Dir: filepath.Join(dir, filesDir)}, nil
}

// finish writes the record and makes every name below staging durable.
func (s *Store) finish(rec artifact.Record, staging string) error {
	text, err := json.MarshalIndent(rec, "", "  ")
	if err != nil {
		return err
	}
	if err := writeSync(s.fs, filepath.Join(staging, recordFile), append(text, '\n')); err != nil {
		return err
	}
	if err := s.fs.Chmod(filepath.Join(staging, recordFile), 0o444); err != nil {
		return err
	}
	if err := publishRecord.Hit(); err != nil {
		return err
	}
	if err := syncFolders(s.fs, staging, true); err != nil {
		return err
	}
	return publishSynced.Hit()
}

// syncFolders syncs every folder, the deepest first, and makes all but the top
// read-only: a folder that cannot be written cannot be moved.
func syncFolders(fsys FS, dir string, top bool) error {
	entries, err := fsys.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := syncFolders(fsys, filepath.Join(dir, e.Name()), false); err != nil {
				return err
			}
		}
	}
	if !top {
		if err := fsys.Chmod(dir, 0o555); err != nil {
			return err
		}
	}
	return fsys.SyncDir(dir)
}

// place renames staging to its final name. If an equal artifact is there, that
// one is verified and kept; a damaged one is moved aside.
func (s *Store) place(ctx context.Context, rec artifact.Record, staging string) (string, error) {
	for range 10 {
		dir, have, err := s.slot(rec)
		if err != nil {
			return "", err
		}
		if have {
			err := s.check(ctx, rec, dir)
			if err == nil {
				return dir, nil
			}
			if err := s.setAside(rec, dir, err); err != nil {
				return "", err
			}
		}
		if err := s.fs.MkdirAll(filepath.Dir(dir)); err != nil {
			return "", err
		}
		err = s.fs.Rename(staging, dir)
		if errors.Is(err, fs.ErrExist) || errors.Is(err, syscall.ENOTEMPTY) {
			continue // another run was faster
		}
		if err != nil {
			return "", err
		}
		if err := publishRenamed.Hit(); err != nil {
			return "", err
		}
		if err := s.fs.Chmod(dir, 0o555); err != nil {
			return "", err
		}
		if err := s.fs.SyncDir(filepath.Dir(dir)); err != nil {
			return "", err
		}
		return dir, publishDone.Hit()
	}
	return "", fmt.Errorf("name %s is taken again and again", rec.ID())
}

// sealFiles lists, hashes, syncs and write-protects the files below dir.
func (s *Store) sealFiles(ctx context.Context, dir string) ([]artifact.File, error) {
	names, err := listFiles(s.fs, dir)
	if err != nil {
		return nil, err
	}
	files := make([]artifact.File, len(names))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i, name := range names {
		g.Go(func() error {
			f, err := s.sealOne(ctx, dir, name)
			files[i] = f
			return err
		})
	}
	return files, g.Wait()
}

func (s *Store) sealOne(ctx context.Context, dir, name string) (artifact.File, error) {
	path := filepath.Join(dir, filepath.FromSlash(name))
	if err := s.ownFile(ctx, path); err != nil {
		return artifact.File{}, err
	}
	if err := s.fs.Chmod(path, 0o444); err != nil {
		return artifact.File{}, err
	}
	f, err := s.fs.Open(path)
	if err != nil {
		return artifact.File{}, err
	}
	startWriteback(f, 0, 0)
	h := sha256.New()
	n, err := readHash(ctx, f, h)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return artifact.File{Path: name, Size: n, Digest: artifact.SumDigest(h.Sum(nil))}, err
}

// ownFile replaces a file that has other names by a copy: whoever holds the
// other name could change the artifact later.
func (s *Store) ownFile(ctx context.Context, path string) error {
	info, err := s.fs.Lstat(path)
	if err != nil {
		return err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); !ok || st.Nlink <= 1 {
		return nil
	}
	own := path + ".own"
	in, err := s.fs.Open(path)
	if err != nil {
		return err
	}
	defer in.Close() //nolint:errcheck // read only
	out, err := s.fs.Create(own)
	if err != nil {
		return err
	}
	_, err = copyHash(ctx, out, in, sha256.New())
	if cerr := out.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	return s.fs.Rename(own, path)
}

// buffers are what files are hashed through; a set of many small files would
// make garbage of a buffer each.
var buffers = sync.Pool{New: func() any { return new([256 << 10]byte) }}

// readHash hashes a file, and stops when ctx does.
func readHash(ctx context.Context, r io.Reader, h hash.Hash) (int64, error) {
	pooled, _ := buffers.Get().(*[256 << 10]byte)
	defer buffers.Put(pooled)
	b := pooled[:]
	var total int64
	for {
		if err := context.Cause(ctx); err != nil {
			return total, err
		}
		n, err := r.Read(b)
		h.Write(b[:n])
		total += int64(n)
		if err == io.EOF {
			return total, nil
		}
		if err != nil {
			return total, err
		}
	}
}

func publishError(d Draft, err error) error {
	if f, ok := errors.AsType[*failure.Error](err); ok {
		return f
	}
	e := failure.New(failure.Artifact, "publish %s: %w", d.Kind, err)
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return e.WithHint("The disk is full: make room (`trtship artifacts gc`), then run again; finished stages are reused.")
	}
	return e
}
