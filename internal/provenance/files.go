package provenance

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"syscall"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/regular"
)

// What says how a file is not as it should be.
type What string

// The kinds of problems.
const (
	Changed    What = "changed"    // other bytes, or no regular file
	Missing    What = "missing"    // not there
	Extra      What = "extra"      // there, and nobody speaks of it
	Invalid    What = "invalid"    // what is said of it cannot be true
	Unreadable What = "unreadable" // it could not be asked
)

// Problem is one file that is not as it should be.
type Problem struct {
	What   What   `json:"what"`
	Path   string `json:"path"`
	Want   string `json:"want,omitempty"` // digest
	Got    string `json:"got,omitempty"`
	Detail string `json:"detail,omitempty"`
}

// String returns e.g. "1/model.onnx is missing".
func (p Problem) String() string {
	var text string
	switch p.What {
	case Missing:
		text = p.Path + " is missing"
	case Extra:
		text = p.Path + " is not listed"
	case Invalid:
		text = strings.Trim(strconv.Quote(p.Path), `"`) + " is not valid"
	case Unreadable:
		text = p.Path + " cannot be read"
	case Changed:
		text = p.Path + " differs"
	}
	if p.Detail != "" {
		text += ": " + p.Detail
	}
	if p.Want != "" && p.Got != "" {
		text += fmt.Sprintf(" (%s instead of %s)", artifact.Digest(p.Got).Short(), artifact.Digest(p.Want).Short())
	}
	return text
}

// Want is a file as it should be. Size is -1 where it is not known.
type Want struct {
	Path   string
	Digest string
	Size   int64
}

// Found is what holding files to their digests gave.
type Found struct {
	Files    int       `json:"files"` // that were hashed
	Bytes    int64     `json:"bytes"`
	Problems []Problem `json:"problems"`
}

// Add takes over what was found elsewhere, below a folder.
func (f *Found) Add(other Found, below string) {
	f.Files += other.Files
	f.Bytes += other.Bytes
	for _, p := range other.Problems {
		if below != "" {
			p.Path = below + "/" + p.Path
		}
		f.Problems = append(f.Problems, p)
	}
}

// Settle sorts the problems by path and says each once.
func (f *Found) Settle() {
	sort.SliceStable(f.Problems, func(i, j int) bool { return f.Problems[i].Path < f.Problems[j].Path })
	said := map[string]bool{}
	f.Problems = slices.DeleteFunc(f.Problems, func(p Problem) bool {
		twice := said[p.String()]
		said[p.String()] = true
		return twice
	})
}

// Say adds a problem.
func (f *Found) Say(what What, path, detail string, args ...any) {
	f.Problems = append(f.Problems, Problem{What: what, Path: path, Detail: fmt.Sprintf(detail, args...)})
}

// CheckFiles holds the files below dir to what is said of them. It opens
// nothing outside of dir, follows no link below it, and writes nothing. Files
// and folders that nobody speaks of are found if extra is set, except those that
// allow names. The error is for a context that ended.
func CheckFiles(ctx context.Context, dir string, want []Want, extra bool, allow ...string) (Found, error) {
	found := Found{Problems: []Problem{}}
	root, err := os.OpenRoot(dir)
	if err != nil {
		found.Problems = append(found.Problems, fileProblem(".", err))
		return found, ctx.Err()
	}
	defer root.Close() //nolint:errcheck // read only
	known := map[string]bool{}
	for _, a := range allow {
		known[a] = true
	}
	twice := map[string]int{}
	for _, w := range want {
		twice[w.Path]++
	}
	for _, w := range want {
		known[w.Path] = true
		if bad := badWant(w, twice[w.Path]); bad != "" {
			if n := twice[w.Path]; n > 0 { // said once for those that are there twice
				found.Say(Invalid, w.Path, "%s", bad)
			}
			twice[w.Path] = -1
			continue
		}
		if err := found.hold(ctx, root, w); err != nil {
			return found, err
		}
	}
	if extra {
		err = found.walk(ctx, root, known)
	}
	found.Settle()
	return found, err
}

// badWant says why nothing can be held to w; empty if it can.
func badWant(w Want, times int) string {
	if err := artifact.CheckPath(w.Path); err != nil {
		return err.Error()
	}
	if times != 1 {
		return "it is listed more than once"
	}
	if w.Digest == "" {
		return "it has no sha256"
	}
	if _, err := artifact.ParseDigest(w.Digest); err != nil {
		return err.Error()
	}
	return ""
}

// hold hashes one file.
func (f *Found) hold(ctx context.Context, root *os.Root, w Want) error {
	in, size, problem := openRegular(root, w.Path)
	if problem != nil {
		problem.Want = w.Digest
		f.Problems = append(f.Problems, *problem)
		return ctx.Err()
	}
	defer in.Close() //nolint:errcheck // read only
	if w.Size >= 0 && size != w.Size {
		f.Problems = append(f.Problems, Problem{What: Changed, Path: w.Path, Want: w.Digest, Detail: fmt.Sprintf("has %d bytes instead of %d", size, w.Size)})
		return ctx.Err()
	}
	h := sha256.New()
	n, err := io.CopyBuffer(h, &reader{ctx, in}, make([]byte, 1<<20))
	f.Files++
	f.Bytes += n
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		f.Problems = append(f.Problems, fileProblem(w.Path, err))
		return nil
	}
	if got := string(artifact.SumDigest(h.Sum(nil))); got != w.Digest {
		f.Problems = append(f.Problems, Problem{What: Changed, Path: w.Path, Want: w.Digest, Got: got})
	}
	return nil
}

// reader ends with its context.
type reader struct {
	ctx context.Context //nolint:containedctx // the life of one copy
	r   io.Reader
}

func (r *reader) Read(b []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(b)
}

// openRegular opens a file that is no link, and has none on its way, and never
// waits for a pipe's other end.
func openRegular(root *os.Root, name string) (*os.File, int64, *Problem) {
	parts := strings.Split(name, "/")
	for i := range parts {
		info, err := root.Lstat(filepath.Join(parts[:i+1]...))
		if err != nil {
			p := fileProblem(name, err)
			return nil, 0, &p
		}
		last := i == len(parts)-1
		if last && !info.Mode().IsRegular() || !last && !info.IsDir() {
			return nil, 0, &Problem{What: Changed, Path: name, Detail: "is or lies behind " + typeName(info.Mode())}
		}
	}
	f, err := root.OpenFile(filepath.Join(parts...), os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		p := fileProblem(name, err)
		return nil, 0, &p
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("no regular file")
	}
	if err != nil {
		_ = f.Close()
		p := fileProblem(name, err)
		return nil, 0, &p
	}
	return f, info.Size(), nil
}

func typeName(m fs.FileMode) string {
	switch {
	case m&fs.ModeSymlink != 0:
		return "a symbolic link"
	case m.IsDir():
		return "a folder"
	case m&fs.ModeNamedPipe != 0:
		return "a pipe"
	case m.IsRegular():
		return "a file"
	}
	return "no regular file"
}

func fileProblem(name string, err error) Problem {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return Problem{What: Missing, Path: name}
	}
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		err = p.Err
	}
	return Problem{What: Unreadable, Path: name, Detail: err.Error()}
}

// mostExtra is how many files that nobody speaks of are named.
const mostExtra = 1000

// walk finds what is not known. Links are not followed, and a folder that holds
// nothing known is named as a whole: empty, it may be a version to a server;
// full, it may be the root of a disk.
func (f *Found) walk(ctx context.Context, root *os.Root, known map[string]bool) error {
	folders := map[string]bool{".": true}
	for name := range known {
		for dir := path.Dir(name); !folders[dir] && dir != "/"; dir = path.Dir(dir) {
			folders[dir] = true
		}
	}
	extra := 0
	err := fs.WalkDir(root.FS(), ".", func(name string, e fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		switch {
		case err != nil:
			f.Problems = append(f.Problems, fileProblem(name, err))
			return fs.SkipDir
		case e.IsDir() && folders[name] || known[name]:
			return nil
		}
		if extra++; extra > mostExtra {
			return fs.SkipAll
		}
		if e.IsDir() {
			f.Say(Extra, name+"/", "%s", "")
			return fs.SkipDir
		}
		f.Say(Extra, name, "%s", "")
		return nil
	})
	if extra > mostExtra {
		f.Say(Extra, ".", "there are more than %d files that are not listed", mostExtra)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// ReadFile reads a document of bounded size that is a regular file. A link to
// one is followed: the caller named it.
func ReadFile(name string, most int64) ([]byte, error) {
	f, err := regular.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // read only
	b, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(b)) > most {
		err = fmt.Errorf("%s has more than the %d bytes that are read", name, most)
	}
	return b, err
}

// Covers returns the files of want that no subject has the digest of, by path.
func (s *Statement) Covers(want []Want) (lacking []string) {
	have := map[string]bool{}
	for _, w := range s.Subjects {
		if _, err := artifact.ParseDigest(w.Digest); err == nil {
			have[w.Digest] = true
		}
	}
	for _, w := range want {
		if !have[w.Digest] {
			lacking = append(lacking, w.Path)
		}
	}
	slices.Sort(lacking)
	return lacking
}
