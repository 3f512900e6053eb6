package worker

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// maxReply bounds one line from the child. Tensors travel in files, so a reply
// is names, shapes and findings; a longer one is a fault and is refused before
// it is held in memory.
const maxReply = 64 << 20

var (
	errReplyTooLong = fmt.Errorf("reply is longer than %d MiB", maxReply>>20)
	errReplyCut     = errors.New("reply ends in the middle of a line")
)

type request struct {
	ID     int64  `json:"id"`
	Method string `json:"method"` // "<half>.<function>"
	Params any    `json:"params"`
}

// reply is one line from the child: a result, an error, word of progress, or
// what the call has reached.
type reply struct {
	ID       int64           `json:"id"`
	Result   json.RawMessage `json:"result,omitempty"`
	Error    *remoteError    `json:"error,omitempty"`
	Progress *progress       `json:"progress,omitempty"`
	Reached  string          `json:"reached,omitempty"`
}

type progress struct {
	Done  int64  `json:"done"`
	Total int64  `json:"total"`
	Label string `json:"label"`
}

// remoteError is how the Python half says that something could not be done.
type remoteError struct {
	Code    int    `json:"code"` // exit code of package failure
	Kind    string `json:"kind"` // load, forward, signature, export, memory, trust, bug
	Message string `json:"message"`
	Where   string `json:"where,omitempty"`
	Hint    string `json:"hint,omitempty"`
	Details []struct {
		Label string `json:"label"`
		Value string `json:"value"`
	} `json:"details,omitempty"`
	Data  json.RawMessage `json:"data,omitempty"` // for programs
	Trace string          `json:"trace,omitempty"`
}

// readReply reads one line and decodes it strictly enough that a cut, huge or
// foreign line is an error and never a half-filled reply.
func readReply(r *bufio.Reader, limit int) (reply, error) {
	line, err := readLine(r, limit)
	if err != nil {
		return reply{}, err
	}
	var out reply
	if err := json.Unmarshal(line, &out); err != nil {
		return reply{}, fmt.Errorf("reply is not the protocol's JSON: %w", err)
	}
	given := 0
	for _, set := range []bool{out.Result != nil, out.Error != nil, out.Progress != nil, out.Reached != ""} {
		if set {
			given++
		}
	}
	if given != 1 {
		return reply{}, fmt.Errorf("reply has %d of result, error, progress and reached, not one", given)
	}
	return out, nil
}

// readLine returns the next line without its end. io.EOF means that nothing
// came at all.
func readLine(r *bufio.Reader, limit int) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		if len(line)+len(part) > limit {
			return nil, errReplyTooLong
		}
		line = append(line, part...)
		switch {
		case err == nil:
			return line[:len(line)-1], nil
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, io.EOF) && len(line) > 0:
			return nil, errReplyCut
		default:
			return nil, err
		}
	}
}
