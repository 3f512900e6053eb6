package tensor

import (
	"math"
	"math/bits"
)

// rowsOf scores the rows of one chunk; a row that goes on is kept in w.open for
// the next chunk. start is where the block begins; finite says that all
// elements are.
func (w *worker) rowsOf(p *partial, ref, got []float64, at, start int64, finite bool) {
	n := int64(len(ref))
	for lo := int64(0); lo < n; {
		index := (at + lo) / w.l.row
		first, end := index*w.l.row, (index+1)*w.l.row
		hi := min(n, end-at)
		piece := scoreRow(ref[lo:hi], got[lo:hi], at+lo, finite)
		piece.index = index
		if w.isOpen {
			piece = joinRows(w.open, piece)
			w.isOpen = false
		}
		switch {
		case at+hi < end:
			w.open, w.isOpen = piece, true
		case first < start:
			p.rowParts = append(p.rowParts, piece)
		default:
			agree, kl, finite := piece.score()
			p.rows++
			p.agree += agree
			if finite {
				p.klSum += kl
				p.klRows++
			}
		}
		lo = hi
	}
}

// scoreRow reduces a run of one row, which starts at an element of the tensor.
func scoreRow(ref, got []float64, at int64, finite bool) rowPart {
	got = got[:len(ref)]
	var r rowPart
	if finite {
		r.refMax, r.refAt = largest(ref)
		r.gotMax, r.gotAt = largest(got)
	} else {
		r.refMax, r.refAt, r.finite = largestOf(ref)
		both := r.finite
		r.gotMax, r.gotAt, r.finite = largestOf(got)
		finite = both && r.finite
	}
	r.finite = finite
	r.refAtGot = ref[r.gotAt]
	r.refAt, r.gotAt = r.refAt+at, r.gotAt+at
	if !finite {
		return r
	}
	refMax, gotMax := r.refMax, r.gotMax
	var refSum, gotSum, cross float64
	for i, x := range ref {
		g := got[i]
		e := expNegative(x - refMax)
		refSum += e
		cross += e * (x - g)
		gotSum += expNegative(g - gotMax)
	}
	r.refSum, r.gotSum, r.cross = refSum, gotSum, cross
	return r
}

// largest returns the first of the largest elements, none of which is NaN.
func largest(v []float64) (most float64, at int64) {
	most = v[0]
	for i, x := range v {
		if x > most {
			most, at = x, int64(i)
		}
	}
	return most, at
}

// largestOf is largest for any elements. As in NumPy, NaN counts as the largest.
func largestOf(v []float64) (most float64, at int64, finite bool) {
	most, finite = v[0], true
	for i, x := range v {
		if larger(x, most) {
			most, at = x, int64(i)
		}
		finite = finite && math.Abs(x) <= math.MaxFloat64
	}
	return most, at, finite
}

// larger is x > most with NaN above everything, the first one kept.
func larger(x, most float64) bool { return x > most || (x != x && most == most) }

// joinRows merges two neighbouring runs of a row.
func joinRows(a, b rowPart) rowPart {
	j := a
	if larger(b.refMax, a.refMax) {
		j.refMax, j.refAt = b.refMax, b.refAt
	}
	if larger(b.gotMax, a.gotMax) {
		j.gotMax, j.gotAt, j.refAtGot = b.gotMax, b.gotAt, b.refAtGot
	}
	if j.finite = a.finite && b.finite; !j.finite {
		return j
	}
	ra, rb := math.Exp(a.refMax-j.refMax), math.Exp(b.refMax-j.refMax)
	j.refSum, j.cross = a.refSum*ra+b.refSum*rb, a.cross*ra+b.cross*rb
	j.gotSum = a.gotSum*math.Exp(a.gotMax-j.gotMax) + b.gotSum*math.Exp(b.gotMax-j.gotMax)
	return j
}

// score says whether the largest elements agree (also where the reference has a
// tie that the candidate breaks another way), and KL(softmax(ref) || softmax(got)).
func (r rowPart) score() (agree int64, kl float64, finite bool) {
	if r.refAt == r.gotAt || r.refAtGot == r.refMax {
		agree = 1
	}
	if !r.finite {
		return agree, 0, false
	}
	kl = r.cross/r.refSum + (r.gotMax - r.refMax) + math.Log(r.gotSum/r.refSum)
	return agree, max(kl, 0), true // below 0 is rounding
}

// continueRow merges a piece into the open row of earlier blocks, or closes that.
func (c *comparer) continueRow(open *rowPart, r rowPart) *rowPart {
	if open == nil {
		return &r
	}
	if open.index != r.index {
		c.closeRow(open)
		return &r
	}
	j := joinRows(*open, r)
	return &j
}

func (c *comparer) closeRow(open *rowPart) {
	if open == nil {
		return
	}
	agree, kl, finite := open.score()
	c.Rows++
	c.agree += agree
	if finite {
		c.klSum += kl
		c.KLRows++
	}
}

const expSteps = 64

// expTable holds the bits of 2^(i/64).
var expTable = func() (t [expSteps]uint64) {
	for i := range t {
		t[i] = math.Float64bits(math.Exp2(float64(i) / expSteps))
	}
	return t
}()

// expNegative is exp(x) for x <= 0 with a relative error below 1e-12, and 0 below
// exp(-700). It is several times faster than math.Exp.
func expNegative(x float64) float64 {
	if x < -700 {
		return 0
	}
	const (
		perStep = expSteps / math.Ln2
		step    = math.Ln2 / expSteps
		shifter = 3 << 51 // adding it rounds to an integer in the low bits
	)
	t := x*perStep + shifter
	k := int64(math.Float64bits(t)) << 12 >> 12
	r := x - (t-shifter)*step
	p := 1 + r*(1+r*(1.0/2+r*(1.0/6+r*(1.0/24))))
	k -= int64(math.Float64bits(shifter)) << 12 >> 12
	return math.Float64frombits(expTable[k&(expSteps-1)]+uint64(k>>bits.TrailingZeros(expSteps))<<52) * p
}
