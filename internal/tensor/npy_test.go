package tensor

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/trtship/trtship/internal/proc"
	"github.com/trtship/trtship/internal/testkit"
)

// python runs a script in the environment that has numpy.
func python(t *testing.T, script string, args ...string) string {
	t.Helper()
	out, err := proc.Output(t.Context(), proc.Command{Path: testkit.Python(t), Args: append([]string{"-I", "-c", script}, args...)})
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

func samples() []Named {
	return []Named{
		{"f64", FromFloat64s(Float64, []int64{2, 2}, []float64{1, -2.5, math.Inf(1), math.NaN()})},
		{"f32", FromFloat64s(Float32, []int64{3}, []float64{1, 2, 3})},
		{"f16", FromFloat64s(Float16, []int64{3}, []float64{1, 65504, -6e-8})},
		{"bf16", FromFloat64s(BFloat16, []int64{2}, []float64{1, 3.140625})},
		{"f8e4", FromFloat64s(Float8E4, []int64{2}, []float64{448, -0.5})},
		{"f8e5", FromFloat64s(Float8E5, []int64{2}, []float64{57344, 1})},
		{"i64", FromInt64s(Int64, []int64{2}, []int64{math.MaxInt64, math.MinInt64})},
		{"i32", FromInt64s(Int32, []int64{1, 1, 2}, []int64{-1, 7})},
		{"i16", FromInt64s(Int16, []int64{2}, []int64{-300, 300})},
		{"i8", FromInt64s(Int8, []int64{2}, []int64{-128, 127})},
		{"i4", FromInt64s(Int4, []int64{3}, []int64{-8, 7, 1})},
		{"u64", FromInt64s(UInt64, []int64{1}, []int64{-1})},
		{"u32", FromInt64s(UInt32, []int64{1}, []int64{1 << 31})},
		{"u16", FromInt64s(UInt16, []int64{1}, []int64{65535})},
		{"u8", FromInt64s(UInt8, []int64{2}, []int64{0, 255})},
		{"u4", FromInt64s(UInt4, []int64{2, 1}, []int64{15, 3})},
		{"b", FromInt64s(Bool, []int64{2}, []int64{1, 0})},
		{"s", FromStrings([]int64{2, 1}, []string{"größe", ""})},
		{"raw", FromStrings([]int64{2}, []string{"ends in nul\x00", "\xff"})},
		{"scalar", FromFloat64s(Float32, []int64{}, []float64{7})},
		{"empty", Zeros(Float32, 0, 3)},
		{"/enc/out:0", FromFloat64s(Float32, []int64{1}, []float64{7})},
	}
}

func TestEveryTypeSurvivesAnNPZFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "all.npz")
	if err := WriteNPZ(path, samples()); err != nil {
		t.Fatal(err)
	}
	got, err := ReadNPZ(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(samples(), got, cmp.Comparer(Tensor.Equal)); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

func TestNumPyReadsWhatWeWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "all.npz")
	if err := WriteNPZ(path, samples()); err != nil {
		t.Fatal(err)
	}
	got := python(t, `import sys, numpy as np
z = np.load(sys.argv[1], allow_pickle=False)
for k in z.files: print(k, z[k].dtype.str, list(z[k].shape), z[k].tolist())`, path)
	want := `f64 <f8 [2, 2] [[1.0, -2.5], [inf, nan]]
f32 <f4 [3] [1.0, 2.0, 3.0]
f16 <f2 [3] [1.0, 65504.0, -5.960464477539063e-08]
bf16 <u2 [2] [16256, 16457]
f8e4 |u1 [2] [126, 176]
f8e5 |u1 [2] [123, 60]
i64 <i8 [2] [9223372036854775807, -9223372036854775808]
i32 <i4 [1, 1, 2] [[[-1, 7]]]
i16 <i2 [2] [-300, 300]
i8 |i1 [2] [-128, 127]
i4 |u1 [2] [120, 1]
u64 <u8 [1] [18446744073709551615]
u32 <u4 [1] [2147483648]
u16 <u2 [1] [65535]
u8 |u1 [2] [0, 255]
u4 |u1 [1] [63]
b |b1 [2] [True, False]
s <U5 [2, 1] [['größe'], ['']]
raw |u1 [21] [12, 0, 0, 0, 101, 110, 100, 115, 32, 105, 110, 32, 110, 117, 108, 0, 1, 0, 0, 0, 255]
scalar <f4 [] 7.0
empty <f4 [0, 3] []
/enc/out:0 <f4 [1] [7.0]`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

func TestWeReadWhatNumPyWrites(t *testing.T) {
	path := filepath.Join(t.TempDir(), "n.npz")
	python(t, `import sys, numpy as np
np.savez_compressed(sys.argv[1], big=np.array([[1,2,3],[4,5,6]], '>f4'), fortran=np.asfortranarray(np.arange(24).reshape(2,3,4)),
  half=np.array([1.5], np.float16), text=np.array(['a\0b','größe']), raw=np.array([b'xy', b'z']), yes=np.array([True, False]),
  scalar=np.float64(2.5), none=np.zeros((0,2), np.int8), wide=np.array(['€'], '>U1'), fstr=np.asfortranarray(np.array([['a','b'],['c','d']])))`, path)
	got, err := ReadNPZ(path)
	if err != nil {
		t.Fatal(err)
	}
	count := make([]int64, 24)
	for i := range count {
		count[i] = int64(i)
	}
	want := []Named{
		{"big", FromFloat64s(Float32, []int64{2, 3}, []float64{1, 2, 3, 4, 5, 6})},
		{"fortran", FromInt64s(Int64, []int64{2, 3, 4}, count)},
		{"half", FromFloat64s(Float16, []int64{1}, []float64{1.5})},
		{"text", FromStrings([]int64{2}, []string{"a\x00b", "größe"})},
		{"raw", FromStrings([]int64{2}, []string{"xy", "z"})},
		{"yes", FromInt64s(Bool, []int64{2}, []int64{1, 0})},
		{"scalar", FromFloat64s(Float64, []int64{}, []float64{2.5})},
		{"none", Zeros(Int8, 0, 2)},
		{"wide", FromStrings([]int64{1}, []string{"€"})},
		{"fstr", FromStrings([]int64{2, 2}, []string{"a", "b", "c", "d"})},
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(Tensor.Equal)); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

func TestTheSameArraysGiveTheSameBytes(t *testing.T) {
	var a, b bytes.Buffer
	if err := writeNPZ(&a, samples()); err != nil {
		t.Fatal(err)
	}
	if err := writeNPZ(&b, samples()); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(a.Bytes(), b.Bytes()) {
		t.Error("two archives of the same arrays differ")
	}
}

func npyFile(header string, data ...byte) []byte {
	b := append([]byte(npyMagic), 1, 0)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(header)))
	return append(append(b, header...), data...)
}

func TestHostileFilesAreRefused(t *testing.T) {
	long := append([]byte(npyMagic), 2, 0, 0xff, 0xff, 0xff, 0xff)
	cases := map[string]struct {
		file []byte
		want string
	}{
		"empty":                   {nil, "unexpected EOF"},
		"another format":          {[]byte("<html>..."), "wrong magic"},
		"a version to come":       {append([]byte(npyMagic), 9, 0, 0, 0), "version 9.0 is not known"},
		"a header of 4 GB":        {long, "longer than"},
		"a cut header":            {append([]byte(npyMagic), 1, 0, 90, 0, '{'), "header: unexpected EOF"},
		"no dictionary":           {npyFile("[]"), "expected a dictionary"},
		"a missing key":           {npyFile("{'descr': '<f4', 'shape': (1,)}"), "expected descr"},
		"a key twice":             {npyFile("{'descr': '<f4', 'descr': '<f4', 'shape': (1,)}"), "given twice"},
		"a negative size":         {npyFile("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}"), "is no size"},
		"a size beyond 64 bits":   {npyFile("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}"), "is no size"},
		"sizes that overflow":     {npyFile("{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296)}"), "more elements than"},
		"bytes that overflow":     {npyFile("{'descr': '<f8', 'fortran_order': False, 'shape': (2305843009213693952,)}"), "too large"},
		"more than is there":      {npyFile("{'descr': '<f4', 'fortran_order': False, 'shape': (100,)}", 1, 2, 3), "unexpected EOF"},
		"much more than is there": {npyFile("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000,)}", 1, 2, 3), "unexpected EOF"},
		"beyond the limit":        {npyFile("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,)}"), "more than the limit"},
		"pickled objects":         {npyFile("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}"), "cannot be read"},
		"python objects":          {npyFile("{'descr': '|O8', 'fortran_order': False, 'shape': (1,)}"), "pickled"},
		"records":                 {npyFile("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}"), "no records"},
		"complex numbers":         {npyFile("{'descr': '<c8', 'fortran_order': False, 'shape': (1,)}"), "cannot be read"},
		"dates":                   {npyFile("{'descr': '<M8[s]', 'fortran_order': False, 'shape': (1,)}"), "cannot be read"},
		"65 axes":                 {npyFile("{'descr': '<f4', 'fortran_order': False, 'shape': (" + strings.Repeat("1, ", 65) + ")}"), "more than 64 axes"},
		"text after the end":      {npyFile("{'descr': '<f4', 'fortran_order': False, 'shape': (1,)} import os"), "after the dictionary"},
		"an unclosed string":      {npyFile("{'descr: 1}"), "not closed"},
		"an unclosed shape":       {npyFile("{'descr': '<f4', 'fortran_order': False, 'shape': (1"), "not closed"},
		"no colon":                {npyFile("{'descr' '<f4'}"), "colon"},
		"no comma":                {npyFile("{'descr': '<f4' 'shape': (1,)}"), "comma"},
		"escapes":                 {npyFile(`{'de\x73cr': '<f4'}`), "escapes"},
		"a lone surrogate":        {npyFile("{'descr': '<U1', 'fortran_order': False, 'shape': (1,)}", 0, 0xd8, 0, 0), "is no character"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := ReadNPY(bytes.NewReader(c.file), 0)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("err = %v, want %q in it", err, c.want)
			}
		})
	}
}

func TestBoolsOfOtherBitsBecomeTrue(t *testing.T) {
	got, err := ReadNPY(bytes.NewReader(npyFile("{'descr': '|b1', 'fortran_order': False, 'shape': (3,)}", 0, 2, 255)), 0)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]byte{0, 1, 1}, got.Data); diff != "" {
		t.Error(diff)
	}
}

func archive(t *testing.T, members map[string][]byte, method uint16) []byte {
	t.Helper()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for name, data := range members {
		m, err := w.CreateHeader(&zip.FileHeader{Name: name, Method: method})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := m.Write(data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestHostileArchivesAreRefused(t *testing.T) {
	one := npyFile("{'descr': '|u1', 'fortran_order': False, 'shape': (1,)}", 1)
	bomb := npyFile("{'descr': '|u1', 'fortran_order': False, 'shape': (4000000,)}", make([]byte, 4000000)...)
	damaged := archive(t, map[string][]byte{"a.npy": npyFile("{'descr': '|u1', 'fortran_order': False, 'shape': (64,)}", bytes.Repeat([]byte{7}, 64)...)}, zip.Store)
	damaged[bytes.Index(damaged, []byte{7, 7, 7})] = 8
	cases := map[string]struct {
		file []byte
		want string
	}{
		"no archive":                 {[]byte("PK"), "is not an .npz file"},
		"a path upwards":             {archive(t, map[string][]byte{"../x.npy": one}, zip.Store), "leads out of the archive"},
		"a path upwards inside":      {archive(t, map[string][]byte{"a/../../x.npy": one}, zip.Store), "leads out of the archive"},
		"a backslash":                {archive(t, map[string][]byte{`..\x.npy`: one}, zip.Store), "leads out of the archive"},
		"no name":                    {archive(t, map[string][]byte{".npy": one}, zip.Store), "leads out of the archive"},
		"no array":                   {archive(t, map[string][]byte{"x.txt": one}, zip.Store), "is no .npy array"},
		"a bomb":                     {archive(t, map[string][]byte{"x.npy": bomb}, zip.Deflate), "more than the limit"},
		"many small bombs":           {archive(t, map[string][]byte{"a.npy": bomb[:len(bomb)-3999000], "x.npy": bomb}, zip.Deflate), "array"},
		"bytes after the last one":   {archive(t, map[string][]byte{"x.npy": append(bytes.Clone(one), 1)}, zip.Store), "after its last element"},
		"a flipped bit":              {damaged, "is damaged"},
		"a length that lies":         {noted(t, `{"dtype":"string","shape":[1]}`, []byte{9, 0, 0, 0, 1}), "expected 9"},
		"too few strings":            {noted(t, `{"dtype":"string","shape":[2]}`, []byte{0, 0, 0, 0}), "expected 2"},
		"a cut length":               {noted(t, `{"dtype":"string","shape":[1]}`, []byte{9, 0}), "expected a length"},
		"packed with too few bytes":  {noted(t, `{"dtype":"int4","shape":[9]}`, []byte{9, 0}), "expected 5"},
		"packed with negative sizes": {noted(t, `{"dtype":"int4","shape":[-9]}`, []byte{9, 0}), "negative size"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := readNPZ(bytes.NewReader(c.file), int64(len(c.file)), 1<<20)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("err = %v, want %q in it", err, c.want)
			}
		})
	}
}

// noted is an archive with one array of bytes and a comment on it.
func noted(t *testing.T, comment string, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	m, err := w.CreateHeader(&zip.FileHeader{Name: "x.npy", Comment: comment})
	if err != nil {
		t.Fatal(err)
	}
	if err := WriteNPY(m, Tensor{DType: UInt8, Shape: []int64{int64(len(data))}, Data: data}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestSomebodyElsesCommentIsNoType(t *testing.T) {
	for _, comment := range []string{"made by hand", `{"dtype":"float64"}`, `{"other":1}`} {
		b := noted(t, comment, []byte{1, 2})
		got, err := readNPZ(bytes.NewReader(b), int64(len(b)), 1<<20)
		if err != nil || got[0].DType != UInt8 {
			t.Errorf("comment %q: %v, %v", comment, got, err)
		}
	}
}

func TestAnArrayGivenTwiceIsRefused(t *testing.T) {
	twice := []Named{{"a", Zeros(Float32, 1)}, {"a", Zeros(Float32, 1)}}
	if err := writeNPZ(&bytes.Buffer{}, twice); err == nil {
		t.Error("written")
	}
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for range 2 {
		m, err := w.Create("a.npy")
		if err != nil {
			t.Fatal(err)
		}
		if err := WriteNPY(m, Zeros(Float32, 1)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := readNPZ(bytes.NewReader(b.Bytes()), int64(b.Len()), 1<<20); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Errorf("err = %v", err)
	}
}

func TestWhatNumPyCannotHoldIsNotWrittenAsNPY(t *testing.T) {
	for name, x := range map[string]Tensor{
		"a string that ends in NUL":  FromStrings([]int64{1}, []string{"a\x00"}),
		"a string that is no UTF-8":  FromStrings([]int64{1}, []string{"\xff"}),
		"a tensor that is too short": {DType: Float32, Shape: []int64{3}},
	} {
		if err := WriteNPY(&bytes.Buffer{}, x); err == nil {
			t.Errorf("%s was written", name)
		}
	}
}

func TestRowsOfALargeFileAreReadInParts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.npy")
	want := FromInt64s(Int32, []int64{4, 3}, []int64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11})
	var b bytes.Buffer
	if err := WriteNPY(&b, want); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := OpenNPY(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	got, err := r.Rows(1, 3)
	if err != nil || !got.Equal(want.Rows(1, 3)) {
		t.Errorf("rows 1 to 3 = %v, %v", got, err)
	}
	if _, err := r.Rows(3, 5); err == nil {
		t.Error("rows beyond the end were read")
	}
	if whole, err := ReadNPYFile(path); err != nil || !whole.Equal(want) {
		t.Errorf("the whole file = %v, %v", whole, err)
	}
	if err := os.WriteFile(path, b.Bytes()[:b.Len()-1], 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenNPY(path); err == nil || !strings.Contains(err.Error(), "cut off") {
		t.Errorf("a cut file: err = %v", err)
	}
	fortran := filepath.Join(t.TempDir(), "f.npy")
	python(t, "import sys, numpy as np; np.save(sys.argv[1], np.asfortranarray(np.ones((2,3))))", fortran)
	if _, err := OpenNPY(fortran); err == nil || !strings.Contains(err.Error(), "ascontiguousarray") {
		t.Errorf("a file in Fortran order: err = %v", err)
	}
}

func TestAFeedIsAnArchiveOrAFolder(t *testing.T) {
	dir := t.TempDir()
	for name, v := range map[string]float64{"b": 2, "a": 1} {
		var b bytes.Buffer
		if err := WriteNPY(&b, FromFloat64s(Float32, []int64{1}, []float64{v})); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name+".npy"), b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	feed, err := ReadFeed(dir)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"a", "b"}, Names(feed)); diff != "" {
		t.Error(diff)
	}
	path := filepath.Join(t.TempDir(), "x.npz")
	if err := WriteNPZ(path, feed); err != nil {
		t.Fatal(err)
	}
	again, err := ReadFeed(path)
	if err != nil || fmt.Sprint(again) != fmt.Sprint(feed) {
		t.Errorf("the archive gives %v, %v", again, err)
	}
	if _, err := ReadFeed(t.TempDir()); err == nil {
		t.Error("an empty folder is a feed")
	}
	if _, err := ReadFeed(filepath.Join(dir, "none")); err == nil {
		t.Error("a missing file is a feed")
	}
}

func FuzzReadNPY(f *testing.F) {
	for _, s := range samples() {
		t, _ := plain(s.Tensor)
		var b bytes.Buffer
		if err := WriteNPY(&b, t); err == nil {
			f.Add(b.Bytes())
		}
	}
	f.Add(npyFile("{'descr': '>U2', 'fortran_order': True, 'shape': (1L, 2L)}", make([]byte, 16)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := ReadNPY(bytes.NewReader(b), 1<<20)
		if err != nil {
			return
		}
		if err := got.Check(); err != nil {
			t.Fatalf("read without an error: %v", err)
		}
		if came := len(b) - npyHeaderEnd(b); len(got.Data) > came {
			t.Fatalf("%d bytes of elements, %d came", len(got.Data), came)
		}
		var out bytes.Buffer
		if err := WriteNPY(&out, got); err != nil {
			if got.DType == String {
				return // NumPy itself cannot hold it
			}
			t.Fatal(err)
		}
		again, err := ReadNPY(bytes.NewReader(out.Bytes()), 1<<21)
		if err != nil || !again.Equal(got) {
			t.Fatalf("does not survive being written: %v, %v, %v", got, again, err)
		}
	})
}

// npyHeaderEnd is where the elements of a file begin.
func npyHeaderEnd(b []byte) int {
	if b[6] == 1 {
		return 10 + int(binary.LittleEndian.Uint16(b[8:]))
	}
	return 12 + int(binary.LittleEndian.Uint32(b[8:]))
}

// FuzzReadNPZ reads whole archives, and such whose one member and its comment
// are anything: the checksum of a member would keep the fuzzer out of it.
func FuzzReadNPZ(f *testing.F) {
	var whole bytes.Buffer
	if err := writeNPZ(&whole, samples()); err != nil {
		f.Fatal(err)
	}
	f.Add(whole.Bytes(), []byte{}, "")
	many := Named{"many", FromStrings([]int64{16}, slices.Repeat([]string{"\xff"}, 16))}
	for _, s := range append(samples(), many) {
		var member bytes.Buffer
		t, note := plain(s.Tensor)
		if note == nil {
			continue // FuzzReadNPY has those
		}
		if err := WriteNPY(&member, t); err != nil {
			f.Fatal(err)
		}
		comment, err := json.Marshal(note)
		if err != nil {
			f.Fatal(err)
		}
		f.Add([]byte{}, member.Bytes(), string(comment))
	}
	f.Fuzz(func(t *testing.T, b, member []byte, comment string) {
		checkNPZ(t, b)
		if len(comment) < 1<<16 {
			checkNPZ(t, archiveOf(t, member, comment))
		}
	})
}

func archiveOf(t *testing.T, member []byte, comment string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	w, err := z.CreateHeader(&zip.FileHeader{Name: "x.npy", Method: zip.Store, Comment: comment})
	if err == nil {
		_, err = w.Write(member)
	}
	if err == nil {
		err = z.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// checkNPZ demands that what is read holds together and survives being written.
func checkNPZ(t *testing.T, b []byte) {
	t.Helper()
	got, err := readNPZ(bytes.NewReader(b), int64(len(b)), 1<<20)
	if err != nil {
		return
	}
	for _, a := range got {
		if err := a.Check(); err != nil {
			t.Fatalf("array %q was read without an error: %v", a.Name, err)
		}
	}
	var out bytes.Buffer
	if err := writeNPZ(&out, got); err != nil {
		t.Fatal(err)
	}
	again, err := readNPZ(bytes.NewReader(out.Bytes()), int64(out.Len()), 1<<21)
	if err != nil || len(again) != len(got) {
		t.Fatalf("%d arrays of %d survive being written: %v", len(again), len(got), err)
	}
	for i := range got {
		if again[i].Name != got[i].Name || !again[i].Equal(got[i].Tensor) {
			t.Fatalf("array %q does not survive being written", got[i].Name)
		}
	}
}
