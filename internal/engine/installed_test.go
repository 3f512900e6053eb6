package engine

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/trtship/trtship/internal/failure"
)

type answers map[string]string

func (a answers) Call(method string, _, result any) error {
	return json.Unmarshal([]byte(a[method]), result)
}

func TestAReleaseThatIsNotKnownIsNoTensorRT(t *testing.T) {
	for name, tt := range map[string]struct{ answer, want string }{
		"too old":             {`{"version": "7.2.3", "oldest": "8.6", "readable": true}`, "older than 8.6"},
		"not a version":       {`{"version": "abc", "oldest": "8.6"}`, `the version "abc", which is none`},
		"known":               {`{"version": "10.6.0", "oldest": "8.6", "readable": true, "known": true}`, ""},
		"an answer of nobody": {`{}`, "which is none"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := AskInstalled(answers{"trt.installed": tt.answer})
			if tt.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			var e *failure.Error
			if !errors.As(err, &e) || e.Code != failure.Missing || !strings.Contains(e.Message, tt.want) || e.Hint == "" {
				t.Errorf("got %v, want exit 3 with %q and a hint", err, tt.want)
			}
		})
	}
}

func TestWhatAReleaseDoesNotTakeIsNamed(t *testing.T) {
	i := Installed{Version: "10.6.0", ComputeCapability: "7.5", CUDA: 12, Driver: "525.60.13"}
	for name, tt := range map[string]struct{ driver, cuda, cc, want string }{
		"an H200":                       {"580.95.05", "13.0", "9.0", ""},
		"a B200":                        {"580.95.05", "13.0", "10.0", ""},
		"the least":                     {"525.60.13", "12.0", "7.5", ""},
		"a P100":                        {"535.1", "12.2", "6.0", "compute capability 7.5 or later, and this one has 6.0"},
		"a driver of before":            {"470.57.02", "11.4", "8.0", "made for CUDA 12, and driver 470.57.02 of this machine is for CUDA 11.4"},
		"an old driver with its compat": {"470.57.02", "12.4", "8.0", ""},
		"nothing known":                 {"", "", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			switch err := i.Takes(tt.driver, tt.cuda, tt.cc); {
			case tt.want == "" && err != nil:
				t.Error(err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want) || failure.CodeOf(err) != failure.Missing):
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
	if err := (Installed{Version: "10.6.0", ComputeCapability: "7.5"}).Takes("470.1", "11.4", "8.0"); err != nil {
		t.Errorf("%v; packages that do not say their CUDA refuse no driver", err)
	}
}

func TestAReleaseWithoutTheBuildersLibrariesRunsEnginesOnly(t *testing.T) {
	i, err := AskInstalled(answers{"trt.installed": `{"version": "10.6.0", "oldest": "8.6", "readable": true, "known": true, "builder": "libnvinfer_builder_resource is not beside /x/libnvinfer.so.10"}`})
	if err != nil {
		t.Fatal(err)
	}
	if err := i.Builds(); failure.CodeOf(err) != failure.Missing || !strings.Contains(err.Error(), "cannot build them: libnvinfer_builder_resource") {
		t.Error(err)
	}
	if err := (Installed{}).Builds(); err != nil {
		t.Error(err)
	}
}

func TestARuntimeThatDoesNotStartIsExit3WithItsReason(t *testing.T) {
	err := StartRuntime(answers{"trt.start": `{"version": "10.6.0", "refused": "CUDA initialization failure with error: 35"}`})
	if failure.CodeOf(err) != failure.Missing || !strings.Contains(err.Error(), "error: 35") {
		t.Error(err)
	}
	if err := StartRuntime(answers{"trt.start": `{"version": "10.6.0", "refused": ""}`}); err != nil {
		t.Error(err)
	}
}
