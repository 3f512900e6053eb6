package ort

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"github.com/trtship/trtship/internal/tensor"
)

// The functions of struct OrtApi that we call, by their place in it. The order
// is frozen: onnxruntime_c_api.h only ever appends.
const (
	fnGetErrorCode                   = 1
	fnGetErrorMessage                = 2
	fnCreateEnv                      = 3
	fnCreateSession                  = 7
	fnCreateSessionFromArray         = 8
	fnRun                            = 9
	fnCreateSessionOptions           = 10
	fnEnableProfiling                = 14
	fnSetSessionGraphOptimization    = 23
	fnSetIntraOpNumThreads           = 24
	fnSetInterOpNumThreads           = 25
	fnSessionGetInputCount           = 30
	fnSessionGetOutputCount          = 31
	fnSessionGetOverridableCount     = 32
	fnSessionGetInputTypeInfo        = 33
	fnSessionGetOutputTypeInfo       = 34
	fnSessionGetOverridableTypeInfo  = 35
	fnSessionGetInputName            = 36
	fnSessionGetOutputName           = 37
	fnSessionGetOverridableName      = 38
	fnCreateTensorAsOrtValue         = 48
	fnCreateTensorWithDataAsOrtValue = 49
	fnGetTensorMutableData           = 51
	fnGetStringTensorDataLength      = 53
	fnGetStringTensorContent         = 54
	fnCastTypeInfoToTensorInfo       = 55
	fnGetOnnxTypeFromTypeInfo        = 56
	fnGetTensorElementType           = 60
	fnGetDimensionsCount             = 61
	fnGetDimensions                  = 62
	fnGetSymbolicDimensions          = 63
	fnGetTensorTypeAndShape          = 65
	fnGetValueType                   = 67
	fnCreateCPUMemoryInfo            = 69
	fnAllocatorFree                  = 76
	fnGetAllocatorWithDefaultOptions = 78
	fnReleaseStatus                  = 93
	fnReleaseSession                 = 95
	fnReleaseValue                   = 96
	fnReleaseTypeInfo                = 98
	fnReleaseTensorTypeAndShapeInfo  = 99
	fnReleaseSessionOptions          = 100
	fnSessionEndProfiling            = 110
	fnAddSessionConfigEntry          = 130
	fnGetResizedStringElementBuffer  = 252
	fnCount                          = 253
)

// apiVersion is the oldest OrtApi that has all of these (ONNX Runtime 1.16).
const apiVersion = 16

// statusError is what ONNX Runtime said about a failed call.
type statusError struct {
	Code    int    `json:"code"` // OrtErrorCode
	Message string `json:"message"`
}

func (e *statusError) Error() string { return e.Message }

// The OrtErrorCode values that we tell apart.
const (
	codeInvalidArgument = 2
	codeNoSuchFile      = 3
	codeRuntime         = 6
	codeInvalidProtobuf = 7
	codeNotImplemented  = 9
	codeInvalidGraph    = 10
)

// native is a loaded ONNX Runtime. It lives in the child process only: a crash
// in it ends the process.
type native struct {
	api       [fnCount]uintptr
	version   string
	env       uintptr
	memory    uintptr
	allocator uintptr
}

// loadNative opens the shared library and makes an environment.
func loadNative(path string) (*native, error) {
	n, err := openNative(path)
	if err != nil {
		return nil, err
	}
	name := cString("trtship")
	const warnings = 2
	if err := n.call(fnCreateEnv, warnings, uintptr(unsafe.Pointer(&name[0])), uintptr(unsafe.Pointer(&n.env))); err != nil {
		return nil, err
	}
	if err := n.call(fnCreateCPUMemoryInfo, 0, 0, uintptr(unsafe.Pointer(&n.memory))); err != nil {
		return nil, err
	}
	if err := n.call(fnGetAllocatorWithDefaultOptions, uintptr(unsafe.Pointer(&n.allocator))); err != nil {
		return nil, err
	}
	return n, nil
}

// openNative opens the shared library and reads its version and functions.
func openNative(path string) (*native, error) {
	lib, err := dlopen(path)
	if err != nil {
		return nil, err
	}
	base, err := dlsym(lib, "OrtGetApiBase")
	if err != nil {
		return nil, fmt.Errorf("%s is no ONNX Runtime library: %w", path, err)
	}
	table, _, _ := syscallN(base)
	fns := (*[2]uintptr)(pointer(table)) // GetApi, GetVersionString
	text, _, _ := syscallN(fns[1])
	n := &native{version: goString(text)}
	api, _, _ := syscallN(fns[0], apiVersion)
	if api == 0 {
		return nil, fmt.Errorf("ONNX Runtime %s is older than 1.%d, the oldest that can be used", n.version, apiVersion)
	}
	n.api = *(*[fnCount]uintptr)(pointer(api))
	return n, nil
}

// call calls a function that returns an OrtStatus. Addresses of Go memory must
// be converted to uintptr in its argument list, where the compiler then keeps
// them alive and in place; what has to outlive the call is pinned.
//
//go:uintptrescapes
func (n *native) call(fn int, args ...uintptr) error {
	status, _, _ := syscallN(n.api[fn], args...)
	if status == 0 {
		return nil
	}
	code, _, _ := syscallN(n.api[fnGetErrorCode], status)
	text, _, _ := syscallN(n.api[fnGetErrorMessage], status)
	err := &statusError{Code: int(int32(code)), Message: goString(text)}
	n.release(fnReleaseStatus, status)
	return err
}

func (n *native) release(fn int, handle uintptr) {
	if handle != 0 {
		syscallN(n.api[fn], handle)
	}
}

// take copies a C string that the library allocated, and frees it.
func (n *native) take(text uintptr) string {
	s := goString(text)
	_ = n.call(fnAllocatorFree, n.allocator, text)
	return s
}

// nativeSession is a loaded model.
type nativeSession struct {
	*native
	handle    uintptr
	inputs    []ValueInfo
	optional  []ValueInfo // initializers that a feed may override
	outputs   []ValueInfo
	outNames  [][]byte // NUL-terminated
	profiling bool
}

// openSession loads a model, from model if that is not nil, else from path.
func (n *native) openSession(path string, model []byte, o sessionOptions) (*nativeSession, error) {
	var options uintptr
	if err := n.call(fnCreateSessionOptions, uintptr(unsafe.Pointer(&options))); err != nil {
		return nil, err
	}
	defer n.release(fnReleaseSessionOptions, options)
	if err := n.setOptions(options, o); err != nil {
		return nil, err
	}
	s := &nativeSession{native: n, profiling: o.Profile != ""}
	var err error
	if model != nil {
		err = n.call(fnCreateSessionFromArray, n.env, uintptr(unsafe.Pointer(&model[0])), uintptr(len(model)), options, uintptr(unsafe.Pointer(&s.handle)))
	} else {
		name := cString(path)
		err = n.call(fnCreateSession, n.env, uintptr(unsafe.Pointer(&name[0])), options, uintptr(unsafe.Pointer(&s.handle)))
	}
	if err != nil {
		return nil, err
	}
	if err := s.describe(); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (n *native) setOptions(options uintptr, o sessionOptions) error {
	if err := n.call(fnSetIntraOpNumThreads, options, uintptr(o.Threads)); err != nil {
		return err
	}
	if err := n.call(fnSetInterOpNumThreads, options, 1); err != nil {
		return err
	}
	if err := n.call(fnSetSessionGraphOptimization, options, uintptr(o.Level)); err != nil {
		return err
	}
	if o.Profile != "" {
		prefix := cString(o.Profile)
		if err := n.call(fnEnableProfiling, options, uintptr(unsafe.Pointer(&prefix[0]))); err != nil {
			return err
		}
	}
	for key, value := range o.Entries {
		k, v := cString(key), cString(value)
		if err := n.call(fnAddSessionConfigEntry, options, uintptr(unsafe.Pointer(&k[0])), uintptr(unsafe.Pointer(&v[0]))); err != nil {
			return fmt.Errorf("option %s: %w", key, err)
		}
	}
	return nil
}

// describe reads the names and types of inputs and outputs.
func (s *nativeSession) describe() error {
	lists := []struct {
		into              *[]ValueInfo
		count, name, info int
	}{
		{&s.inputs, fnSessionGetInputCount, fnSessionGetInputName, fnSessionGetInputTypeInfo},
		{&s.optional, fnSessionGetOverridableCount, fnSessionGetOverridableName, fnSessionGetOverridableTypeInfo},
		{&s.outputs, fnSessionGetOutputCount, fnSessionGetOutputName, fnSessionGetOutputTypeInfo},
	}
	for _, l := range lists {
		var count uint64
		if err := s.call(l.count, s.handle, uintptr(unsafe.Pointer(&count))); err != nil {
			return err
		}
		for i := range uintptr(count) {
			var text uintptr
			if err := s.call(l.name, s.handle, i, s.allocator, uintptr(unsafe.Pointer(&text))); err != nil {
				return err
			}
			info, err := s.typeInfo(l.info, i)
			if err != nil {
				return err
			}
			info.Name = s.take(text)
			*l.into = append(*l.into, info)
		}
	}
	for _, o := range s.outputs {
		s.outNames = append(s.outNames, cString(o.Name))
	}
	return nil
}

func (s *nativeSession) typeInfo(fn int, i uintptr) (ValueInfo, error) {
	var info uintptr
	if err := s.call(fn, s.handle, i, uintptr(unsafe.Pointer(&info))); err != nil {
		return ValueInfo{}, err
	}
	defer s.release(fnReleaseTypeInfo, info)
	var kind int32
	if err := s.call(fnGetOnnxTypeFromTypeInfo, info, uintptr(unsafe.Pointer(&kind))); err != nil {
		return ValueInfo{}, err
	}
	if kind != onnxTypeTensor {
		return ValueInfo{}, nil // a sequence, map or optional: DType stays empty
	}
	var shape uintptr // belongs to info
	if err := s.call(fnCastTypeInfoToTensorInfo, info, uintptr(unsafe.Pointer(&shape))); err != nil {
		return ValueInfo{}, err
	}
	d, dims, err := s.shapeOf(shape)
	if err != nil {
		return ValueInfo{}, err
	}
	v := ValueInfo{DType: d, Dims: dims, Symbols: make([]string, len(dims))}
	if len(dims) > 0 {
		texts := make([]uintptr, len(dims))
		if err := s.call(fnGetSymbolicDimensions, shape, uintptr(unsafe.Pointer(&texts[0])), uintptr(len(dims))); err != nil {
			return ValueInfo{}, err
		}
		for k, t := range texts {
			v.Symbols[k] = goString(t)
		}
	}
	return v, nil
}

func (n *native) shapeOf(info uintptr) (tensor.DType, []int64, error) {
	var code int32
	if err := n.call(fnGetTensorElementType, info, uintptr(unsafe.Pointer(&code))); err != nil {
		return "", nil, err
	}
	d, ok := elementTypes[code]
	if !ok {
		return "", nil, fmt.Errorf("element type %d of ONNX is not supported", code)
	}
	var count uint64
	if err := n.call(fnGetDimensionsCount, info, uintptr(unsafe.Pointer(&count))); err != nil {
		return "", nil, err
	}
	dims := make([]int64, count)
	if count > 0 {
		if err := n.call(fnGetDimensions, info, uintptr(unsafe.Pointer(&dims[0])), uintptr(count)); err != nil {
			return "", nil, err
		}
	}
	return d, dims, nil
}

func (s *nativeSession) close() { s.release(fnReleaseSession, s.handle) }

// endProfile writes the profile and returns its path.
func (s *nativeSession) endProfile() (string, error) {
	if !s.profiling {
		return "", errors.New("the session does not profile")
	}
	var text uintptr
	if err := s.call(fnSessionEndProfiling, s.handle, s.allocator, uintptr(unsafe.Pointer(&text))); err != nil {
		return "", err
	}
	s.profiling = false
	return s.take(text), nil
}

// value is an OrtValue and the Go memory that it may point into.
type value struct {
	handle uintptr
	pin    runtime.Pinner
}

func (n *native) free(vs []*value) {
	for _, v := range vs {
		n.release(fnReleaseValue, v.handle)
		v.pin.Unpin()
	}
}

// newValue wraps t; its bytes are not copied.
func (n *native) newValue(t tensor.Tensor) (*value, error) {
	v := &value{}
	shape := append([]int64{}, t.Shape...)
	shape = append(shape, 0) // so that a scalar's shape has an address
	rank := uintptr(len(t.Shape))
	code := uintptr(elementCode(t.DType))
	if t.DType == tensor.String {
		if err := n.call(fnCreateTensorAsOrtValue, n.allocator, uintptr(unsafe.Pointer(&shape[0])), rank, code, uintptr(unsafe.Pointer(&v.handle))); err != nil {
			return nil, err
		}
		return v, n.fillStrings(v, t.Strings)
	}
	data := t.Data
	if len(data) == 0 {
		data = make([]byte, 8) // an address for zero elements
	}
	v.pin.Pin(&data[0])
	err := n.call(fnCreateTensorWithDataAsOrtValue, n.memory, uintptr(unsafe.Pointer(&data[0])), uintptr(len(t.Data)),
		uintptr(unsafe.Pointer(&shape[0])), rank, code, uintptr(unsafe.Pointer(&v.handle)))
	if err != nil {
		v.pin.Unpin()
		return nil, err
	}
	return v, nil
}

// fillStrings copies strings into v; unlike FillStringTensor it keeps NULs.
func (n *native) fillStrings(v *value, ss []string) error {
	for i, s := range ss {
		var buf uintptr
		if err := n.call(fnGetResizedStringElementBuffer, v.handle, uintptr(i), uintptr(len(s)), uintptr(unsafe.Pointer(&buf))); err != nil {
			return err
		}
		if len(s) > 0 {
			copy(unsafe.Slice((*byte)(pointer(buf)), len(s)), s)
		}
	}
	return nil
}

// run executes the model and returns one value an output, to be freed.
func (s *nativeSession) run(names []string, inputs []*value) ([]*value, error) {
	var pin runtime.Pinner
	defer pin.Unpin()
	// One more element than needed, so that no input at all has an address too.
	inNames, in := make([]uintptr, len(names)+1), make([]uintptr, len(names)+1)
	for i, name := range names {
		b := cString(name)
		pin.Pin(&b[0])
		inNames[i], in[i] = uintptr(unsafe.Pointer(&b[0])), inputs[i].handle
	}
	outNames, out := make([]uintptr, len(s.outNames)+1), make([]uintptr, len(s.outNames)+1)
	for i := range s.outNames {
		pin.Pin(&s.outNames[i][0])
		outNames[i] = uintptr(unsafe.Pointer(&s.outNames[i][0]))
	}
	err := s.call(fnRun, s.handle, 0, uintptr(unsafe.Pointer(&inNames[0])), uintptr(unsafe.Pointer(&in[0])), uintptr(len(names)),
		uintptr(unsafe.Pointer(&outNames[0])), uintptr(len(s.outNames)), uintptr(unsafe.Pointer(&out[0])))
	values := make([]*value, 0, len(s.outNames))
	for _, h := range out[:len(s.outNames)] {
		values = append(values, &value{handle: h})
	}
	if err != nil {
		s.free(values)
		return nil, err
	}
	return values, nil
}

// view returns an output as a tensor whose bytes belong to v. Strings are copied.
func (n *native) view(v *value) (tensor.Tensor, error) {
	var kind int32
	if v.handle == 0 {
		return tensor.Tensor{}, errors.New("the output has no value")
	}
	if err := n.call(fnGetValueType, v.handle, uintptr(unsafe.Pointer(&kind))); err != nil {
		return tensor.Tensor{}, err
	}
	if kind != onnxTypeTensor {
		return tensor.Tensor{}, errors.New("the output is a sequence, map or optional, not a tensor")
	}
	var info uintptr
	if err := n.call(fnGetTensorTypeAndShape, v.handle, uintptr(unsafe.Pointer(&info))); err != nil {
		return tensor.Tensor{}, err
	}
	d, dims, err := n.shapeOf(info)
	n.release(fnReleaseTensorTypeAndShapeInfo, info)
	if err != nil {
		return tensor.Tensor{}, err
	}
	t := tensor.Tensor{DType: d, Shape: dims}
	count := tensor.Elements(dims)
	if d == tensor.String {
		t.Strings, err = n.strings(v, count)
		return t, err
	}
	if count == 0 {
		t.Data = []byte{}
		return t, nil
	}
	var data uintptr
	if err := n.call(fnGetTensorMutableData, v.handle, uintptr(unsafe.Pointer(&data))); err != nil {
		return tensor.Tensor{}, err
	}
	t.Data = unsafe.Slice((*byte)(pointer(data)), tensor.ByteLen(d, count))
	return t, nil
}

func (n *native) strings(v *value, count int64) ([]string, error) {
	ss := make([]string, count)
	if count == 0 {
		return ss, nil
	}
	var size uint64
	if err := n.call(fnGetStringTensorDataLength, v.handle, uintptr(unsafe.Pointer(&size))); err != nil {
		return nil, err
	}
	buf, offsets := make([]byte, size+1), make([]uint64, count+1)
	if err := n.call(fnGetStringTensorContent, v.handle, uintptr(unsafe.Pointer(&buf[0])), uintptr(size), uintptr(unsafe.Pointer(&offsets[0])), uintptr(count)); err != nil {
		return nil, err
	}
	offsets[count] = size
	for i := range ss {
		ss[i] = string(buf[offsets[i]:offsets[i+1]])
	}
	return ss, nil
}

func cString(s string) []byte { return append([]byte(s), 0) }

// pointer is the address of memory that the library owns. It goes through a
// pointer so that vet does not take it for Go memory.
func pointer(a uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&a)) }

func goString(a uintptr) string {
	if a == 0 {
		return ""
	}
	const most = 1 << 20
	b := unsafe.Slice((*byte)(pointer(a)), most)
	end := bytes.IndexByte(b, 0)
	return string(b[:max(end, 0)])
}
