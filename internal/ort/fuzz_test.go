package ort

import (
	"bufio"
	"bytes"
	"testing"

	"github.com/trtship/trtship/internal/tensor"
)

// FuzzWire reads whatever may come over the pipe between the two processes, as
// a reply and as a request: nothing may panic, and what is taken is the same
// after it was sent again.
func FuzzWire(f *testing.F) {
	heads, bodies := announce([]tensor.Named{
		{Name: "x", Tensor: tensor.FromFloat32s([]int64{2}, []float32{1, -2})},
		{Name: "s", Tensor: tensor.FromStrings([]int64{2}, []string{"a\x00", ""})},
		{Name: "n", Tensor: tensor.Zeros(tensor.Int64, 0, 3)},
	})
	for _, line := range []any{reply{ID: 1, Tensors: heads, Version: "1.30.0"}, request{ID: 2, Op: opInfer, Tensors: heads}} {
		var b bytes.Buffer
		if err := send(bufio.NewWriter(&b), line, bodies); err != nil {
			f.Fatal(err)
		}
		f.Add(b.Bytes())
	}
	f.Add([]byte(`{"id":1,"error":{"code":6,"message":"no"}}` + "\n"))
	f.Add([]byte(`{"id":1,"tensors":[{"name":"x","dtype":"float32","shape":[1099511627776],"bytes":1099511627776}]}` + "\nabc"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var q request
		r := bufio.NewReaderSize(bytes.NewReader(b), 16)
		if receiveLine(r, &q) == nil {
			_, _ = receiveTensors(r, q.Tensors)
		}
		var a reply
		r = bufio.NewReaderSize(bytes.NewReader(b), 16)
		if receiveLine(r, &a) != nil {
			return
		}
		got, err := receiveTensors(r, a.Tensors)
		if err != nil {
			return
		}
		came := int64(len(b) - bytes.IndexByte(b, '\n') - 1)
		for _, h := range a.Tensors {
			came -= h.Bytes
		}
		if came < 0 {
			t.Fatalf("%d bytes of tensors were taken that never came", -came)
		}
		var out bytes.Buffer
		again := a
		var bodies [][]byte
		again.Tensors, bodies = announce(got)
		if err := send(bufio.NewWriter(&out), again, bodies); err != nil {
			t.Fatal(err)
		}
		r = bufio.NewReader(&out)
		if err := receiveLine(r, &again); err != nil {
			t.Fatalf("what was sent cannot be read: %v", err)
		}
		twice, err := receiveTensors(r, again.Tensors)
		if err != nil || len(twice) != len(got) {
			t.Fatalf("%d tensors, %v", len(twice), err)
		}
		for i := range got {
			if err := got[i].Check(); err != nil {
				t.Errorf("tensor %q: %v", got[i].Name, err)
			}
			if twice[i].Name != got[i].Name || !twice[i].Equal(got[i].Tensor) {
				t.Errorf("tensor %q changed on the way", got[i].Name)
			}
		}
	})
}
