package passes

import (
	"encoding/binary"
	"io"
	"math"
)

// scaledReader multiplies elements, float32 or float64, while they are read:
// every run of elements has a factor of its own.
type scaledReader struct {
	open    func() (*io.SectionReader, error) // of the elements to multiply
	width   int64                             // bytes of an element
	double  bool
	run     int64 // elements that share a factor
	factors []float64
}

// ReadAt implements io.ReaderAt. It may be called from several goroutines.
func (s *scaledReader) ReadAt(p []byte, off int64) (int, error) {
	if head := off % s.width; head != 0 || int64(len(p))%s.width != 0 {
		return s.unaligned(p, off, head)
	}
	src, err := s.open()
	if err != nil {
		return 0, err
	}
	n, err := src.ReadAt(p, off)
	at := off / s.width
	for rest := p[:int64(n)-int64(n)%s.width]; len(rest) > 0; {
		count := min(s.run-at%s.run, int64(len(rest))/s.width)
		s.scale(rest[:count*s.width], s.factors[at/s.run])
		rest, at = rest[count*s.width:], at+count
	}
	return n, err
}

// unaligned reads whole elements around the bytes that are asked for.
func (s *scaledReader) unaligned(p []byte, off, head int64) (int, error) {
	size := head + int64(len(p))
	whole := make([]byte, size+(s.width-size%s.width)%s.width)
	n, err := s.ReadAt(whole, off-head)
	got := copy(p, whole[min(head, int64(n)):n])
	if got == len(p) {
		return got, nil
	}
	if err == nil {
		err = io.EOF
	}
	return got, err
}

// scale multiplies elements in place.
func (s *scaledReader) scale(b []byte, factor float64) {
	le := binary.LittleEndian
	if s.double {
		for ; len(b) >= 8; b = b[8:] {
			le.PutUint64(b, math.Float64bits(math.Float64frombits(le.Uint64(b))*factor))
		}
		return
	}
	for ; len(b) >= 4; b = b[4:] {
		le.PutUint32(b, math.Float32bits(float32(float64(math.Float32frombits(le.Uint32(b)))*factor)))
	}
}
