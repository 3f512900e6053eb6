package export

import (
	"fmt"
	"strings"

	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/onnx"
)

func dimsOf(shape []config.Dim) []string {
	dims := make([]string, len(shape))
	for i, d := range shape {
		if dims[i] = d.Symbol; d.Symbol == "" {
			dims[i] = fmt.Sprint(d.Size)
		}
	}
	return dims
}

func declaredRows(inputs []config.Input) []string {
	rows := make([]string, len(inputs))
	for i, in := range inputs {
		rows[i] = fmt.Sprintf("%s %s[%s]", in.Name, in.DType, strings.Join(dimsOf(in.Shape), ","))
	}
	return rows
}

func foundRows(values []onnx.Value) []string {
	rows := make([]string, len(values))
	for i, v := range values {
		rows[i] = v.String()
	}
	return rows
}

// sideBySide sets two lists next to each other, for people.
func sideBySide(declared, found []string) string {
	width := len("configuration")
	for _, d := range declared {
		width = max(width, len(d))
	}
	lines := []string{fmt.Sprintf("%-*s | ONNX", width, "configuration")}
	for i := range max(len(declared), len(found)) {
		var d, f string
		if i < len(declared) {
			d = declared[i]
		}
		if i < len(found) {
			f = found[i]
		}
		lines = append(lines, strings.TrimRight(fmt.Sprintf("%-*s | %s", width, d, f), " "))
	}
	return strings.Join(lines, "\n")
}
