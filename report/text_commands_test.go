package report_test

import (
	"reflect"
	"strings"
	"testing"
	"unicode"

	"github.com/trtship/trtship/report"
)

// taint appends to every string below v, names and units as much as verdicts.
func taint(v reflect.Value, mark string) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() && v.Kind() == reflect.Pointer {
			taint(v.Elem(), mark)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				taint(v.Field(i), mark)
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			taint(v.Index(i), mark)
		}
	case reflect.String:
		v.SetString(v.String() + mark)
	}
}

func TestTextCommandsNoTerminalWhicheverFieldTriesTo(t *testing.T) {
	view := hostileView()
	taint(reflect.ValueOf(view.Report), "\x1b[2J\x7f\u009b\x9b")
	taint(reflect.ValueOf(view.Gate), "\x1b[2J\x7f\u009b\x9b")
	text := report.Text(view, report.TextOptions{})
	if at := strings.IndexFunc(text, func(r rune) bool { return r != '\n' && unicode.IsControl(r) }); at >= 0 || strings.ToValidUTF8(text, "") != text {
		t.Errorf("a terminal is commanded by %q", text[max(0, at-60):min(len(text), max(0, at)+20)])
	}
}
