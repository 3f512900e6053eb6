package tensor

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
)

func readHeader(r io.Reader) (Header, error) {
	var start [8]byte
	if _, err := io.ReadFull(r, start[:]); err != nil {
		return Header{}, fmt.Errorf("magic: %w", shortRead(err))
	}
	if string(start[:6]) != npyMagic {
		return Header{}, errors.New("is not an .npy file (wrong magic)")
	}
	lengthBytes := 2
	switch start[6] {
	case 1:
	case 2, 3:
		lengthBytes = 4
	default:
		return Header{}, fmt.Errorf("version %d.%d is not known", start[6], start[7])
	}
	var l [4]byte
	if _, err := io.ReadFull(r, l[:lengthBytes]); err != nil {
		return Header{}, fmt.Errorf("header length: %w", shortRead(err))
	}
	n := binary.LittleEndian.Uint32(l[:])
	if n > maxHeader {
		return Header{}, fmt.Errorf("header of %d bytes is longer than %d", n, maxHeader)
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(r, text); err != nil {
		return Header{}, fmt.Errorf("header: %w", shortRead(err))
	}
	return parseHeader(string(text))
}

func parseHeader(text string) (Header, error) {
	p := literal{rest: text}
	fields, err := p.dict()
	if err != nil {
		return Header{}, fmt.Errorf("header %.80q: %w", text, err)
	}
	if len(fields) != 3 {
		return Header{}, fmt.Errorf("header %.80q: expected descr, fortran_order and shape", text)
	}
	descr, ok1 := fields["descr"].(string)
	fortran, ok2 := fields["fortran_order"].(bool)
	shape, ok3 := fields["shape"].([]int64)
	if !ok1 || !ok2 || !ok3 {
		return Header{}, fmt.Errorf("header %.80q: expected descr, fortran_order and shape", text)
	}
	h := Header{Shape: shape, Fortran: fortran}
	if len(shape) > maxDims {
		return Header{}, fmt.Errorf("array has %d axes, more than %d", len(shape), maxDims)
	}
	n, err := CheckedElements(shape)
	if err != nil {
		return Header{}, err
	}
	if err := h.parseDescr(descr); err != nil {
		return Header{}, err
	}
	if h.width > 0 && n > math.MaxInt64/2/int64(h.width) {
		return Header{}, fmt.Errorf("array of shape %v is too large", shape)
	}
	return h, nil
}

var npyTypes = map[string]DType{
	"f8": Float64, "f4": Float32, "f2": Float16,
	"i8": Int64, "i4": Int32, "i2": Int16, "i1": Int8,
	"u8": UInt64, "u4": UInt32, "u2": UInt16, "u1": UInt8, "b1": Bool,
}

func (h *Header) parseDescr(descr string) error {
	if len(descr) < 2 {
		return fmt.Errorf("element type %q cannot be read", descr)
	}
	order, code := descr[0], descr[1:]
	switch order {
	case '<', '|', '=':
	case '>':
		h.big = true
	default:
		code = descr
	}
	if code == "?" {
		code = "b1"
	}
	h.kind = code[0]
	width, err := strconv.Atoi(code[1:])
	if err != nil || width < 0 || width > 1<<28 {
		return fmt.Errorf("element type %q cannot be read", descr)
	}
	h.width = width
	switch h.kind {
	case 'S', 'a':
		h.DType, h.kind = String, 'S'
		return nil
	case 'U':
		h.DType, h.width = String, 4*width
		return nil
	case 'O':
		return errors.New("array of Python objects (pickled) is refused: save numbers or fixed-length strings")
	}
	d, ok := npyTypes[code]
	if !ok {
		return fmt.Errorf("element type %q cannot be read", descr)
	}
	h.DType = d
	return nil
}

// literal parses the Python dictionary of a header: strings, True, False and
// tuples of integers.
type literal struct{ rest string }

func (p *literal) space() { p.rest = strings.TrimLeft(p.rest, " \t\r\n") }

func (p *literal) take(s string) bool {
	p.space()
	rest, ok := strings.CutPrefix(p.rest, s)
	if ok {
		p.rest = rest
	}
	return ok
}

func (p *literal) dict() (map[string]any, error) {
	if !p.take("{") {
		return nil, errors.New("expected a dictionary")
	}
	fields := map[string]any{}
	for !p.take("}") {
		key, err := p.str()
		if err != nil {
			return nil, err
		}
		if _, twice := fields[key]; twice {
			return nil, fmt.Errorf("key %q is given twice", key)
		}
		if !p.take(":") {
			return nil, errors.New("expected a colon")
		}
		if fields[key], err = p.value(); err != nil {
			return nil, err
		}
		if !p.take(",") {
			if !p.take("}") {
				return nil, errors.New("expected a comma or the end of the dictionary")
			}
			break
		}
	}
	p.space()
	if p.rest != "" {
		return nil, errors.New("unexpected text after the dictionary")
	}
	return fields, nil
}

func (p *literal) value() (any, error) {
	switch {
	case p.take("True"):
		return true, nil
	case p.take("False"):
		return false, nil
	case p.take("("):
		return p.tuple()
	case p.take("["):
		return nil, errors.New("only plain element types can be read, no records")
	}
	return p.str()
}

func (p *literal) tuple() ([]int64, error) {
	dims := []int64{}
	for !p.take(")") {
		p.space()
		end := strings.IndexFunc(p.rest, func(r rune) bool { return (r < '0' || r > '9') && r != '-' })
		if end < 0 {
			return nil, errors.New("the shape is not closed")
		}
		d, err := strconv.ParseInt(p.rest[:end], 10, 64)
		if err != nil || d < 0 {
			return nil, fmt.Errorf("%.20q is no size", p.rest[:end])
		}
		p.rest = strings.TrimPrefix(p.rest[end:], "L") // written by Python 2
		dims = append(dims, d)
		if len(dims) > maxDims {
			return nil, fmt.Errorf("more than %d axes", maxDims)
		}
		if !p.take(",") {
			if !p.take(")") {
				return nil, errors.New("the shape is not closed")
			}
			break
		}
	}
	return dims, nil
}

func (p *literal) str() (string, error) {
	p.space()
	if p.rest == "" || (p.rest[0] != '\'' && p.rest[0] != '"') {
		return "", errors.New("expected a string")
	}
	s, rest, ok := strings.Cut(p.rest[1:], p.rest[:1])
	if !ok {
		return "", errors.New("a string is not closed")
	}
	if strings.ContainsRune(s, '\\') {
		return "", errors.New("escapes in strings are not read")
	}
	p.rest = rest
	return s, nil
}
