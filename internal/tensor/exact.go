package tensor

import (
	"bytes"
	"math"
)

// exact compares one pair of integer, bool or string tensors.
func (c *comparer) exact(sample int, ref, got Tensor) {
	n := ref.Elements()
	c.Elements += n
	c.Finite += n
	if ref.DType == String {
		for i, s := range ref.Strings {
			if got.Strings[i] != s {
				c.Breaches++
				c.note(sample, int64(i), ref, got)
			}
		}
		return
	}
	packed := ref.DType.Size() == 0 || got.DType.Size() == 0
	if !packed && ref.DType == got.DType && ref.DType != Bool && bytes.Equal(ref.Data, got.Data) {
		return
	}
	for i := range n {
		r, g := ref.Int64At(int(i)), got.Int64At(int(i))
		// Equal bits of int64 and uint64 are different numbers if the sign bit is set.
		signs := (ref.DType == UInt64) != (got.DType == UInt64) && r < 0
		if r == g && !signs {
			continue
		}
		c.Breaches++
		c.note(sample, i, ref, got)
		d := math.Abs(ref.Float64At(int(i)) - got.Float64At(int(i)))
		c.MaxAbs = max(c.MaxAbs, d)
		c.sumAbs += d
	}
}
