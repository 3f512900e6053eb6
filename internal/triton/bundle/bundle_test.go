package bundle_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/triton"
	"github.com/trtship/trtship/internal/triton/bundle"
	"github.com/trtship/trtship/internal/triton/tritonpb"
	"github.com/trtship/trtship/internal/triton/tritontest"
)

// repository holds the model m with two versions.
func repository(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, text := range []string{"weights one", "weights two"} {
		src := t.TempDir()
		tritontest.Write(t, src, "m", text)
		if _, err := triton.Add(dir, triton.Content{Config: &tritonpb.ModelConfig{Name: "m", Backend: "onnxruntime"}, Files: map[string]string{"model.onnx": filepath.Join(src, "m")}}); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func pack(t *testing.T, repository string) (string, bundle.Summary) {
	t.Helper()
	path := filepath.Join(t.TempDir(), bundle.Name("m"))
	s, err := bundle.Write(t.Context(), repository, "m", path, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return path, s
}

func TestEqualModelsArePackedToEqualBytesAndComeBack(t *testing.T) {
	repo := repository(t)
	a, first := pack(t, repo)
	old := time.Unix(1e9, 0)
	if err := filepath.WalkDir(repo, func(path string, _ os.DirEntry, err error) error {
		if err == nil {
			err = os.Chtimes(path, old, old)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(repo, "m", "1", "model.onnx"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, second := pack(t, repo)
	if first != second || first.Model != "m" || first.Files != 4 || first.Size == 0 {
		t.Errorf("%+v and %+v; times and permissions must not matter", first, second)
	}
	out := filepath.Join(t.TempDir(), "repository")
	model, err := bundle.Read(t.Context(), a, first.Digest, out)
	if err != nil || model != "m" {
		t.Fatal(model, err)
	}
	for _, name := range []string{"m/1/model.onnx", "m/2/model.onnx", "m/config.pbtxt", "m/" + triton.ManifestFile} {
		want, err := os.ReadFile(filepath.Join(repo, name))
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(out, name))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if _, err := bundle.Read(t.Context(), a, first.Digest, out); failure.CodeOf(err) != failure.Artifact || !strings.Contains(err.Error(), "already there") {
		t.Errorf("over a model that is there: %v", err)
	}
}

func TestADamagedModelIsNotPacked(t *testing.T) {
	repo := repository(t)
	if err := os.WriteFile(filepath.Join(repo, "m", "1", "model.onnx"), []byte("weights 0ne"), 0o644); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "x")
	if _, err := bundle.Write(t.Context(), repo, "m", path, nil, nil); failure.CodeOf(err) != failure.Artifact {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("something was written")
	}
}

// entry is one member of an archive.
type entry struct {
	name, text string
	kind       byte
}

func archive(t *testing.T, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for _, e := range entries {
		if e.kind == 0 {
			e.kind = tar.TypeReg
		}
		h := &tar.Header{Name: e.name, Typeflag: e.kind, Size: int64(len(e.text)), Mode: 0o644}
		if e.kind == tar.TypeSymlink {
			h.Linkname, h.Size = "/etc/passwd", 0
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			if _, err := w.Write([]byte(e.text)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestWhatIsNoBundleOfOneModelIsRefusedAndLeavesNothing(t *testing.T) {
	good, sum := pack(t, repository(t))
	whole, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	flipped := bytes.Clone(whole)
	flipped[len(flipped)/2] ^= 1
	for name, c := range map[string]struct {
		b      []byte
		digest string
		want   string
	}{
		"another digest":             {whole, "sha256:00", "its digest is"},
		"a flipped byte":             {flipped, sum.Digest, "its digest is"},
		"a flipped byte, no digest":  {flipped, "", ""},
		"half of it":                 {whole[:len(whole)/2], "", "unexpected EOF"},
		"nothing":                    {nil, "", "EOF"},
		"no gzip":                    {[]byte("PK\x03\x04 hello"), "", "gzip"},
		"no entries":                 {archive(t), "", "is empty"},
		"a name that leads out":      {archive(t, entry{name: "../x", text: "x"}), "", "leads out"},
		"an absolute name":           {archive(t, entry{name: "/etc/x", text: "x"}), "", "leads out"},
		"a name that comes back":     {archive(t, entry{name: "m/../../x", text: "x"}), "", "leads out"},
		"a link":                     {archive(t, entry{name: "m/1", kind: tar.TypeSymlink}), "", "neither a file nor a folder"},
		"a pipe":                     {archive(t, entry{name: "m/1", kind: tar.TypeFifo}), "", "neither a file nor a folder"},
		"two models":                 {archive(t, entry{name: "m/a", text: "x"}, entry{name: "n/a", text: "x"}), "", "want one model"},
		"a file without a model":     {archive(t, entry{name: "config.pbtxt", text: "x"}), "", "outside of a model's folder"},
		"the same file twice":        {archive(t, entry{name: "m/a", text: "x"}, entry{name: "m/a", text: "y"}), "", "file exists"},
		"files without a manifest":   {archive(t, entry{name: "m/1/model.onnx", text: "x"}), "", triton.ManifestFile},
		"a manifest that is no JSON": {archive(t, entry{name: "m/" + triton.ManifestFile, text: "{"}), "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), bundle.Name("m"))
			if err := os.WriteFile(path, c.b, 0o644); err != nil {
				t.Fatal(err)
			}
			out := filepath.Join(t.TempDir(), "repository")
			_, err := bundle.Read(t.Context(), path, c.digest, out)
			if failure.CodeOf(err) != failure.Artifact || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want exit 11 and %q", err, c.want)
			}
			if left, _ := os.ReadDir(out); len(left) != 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}
