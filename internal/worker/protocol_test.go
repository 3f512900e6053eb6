package worker

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
)

func reader(s string) *bufio.Reader { return bufio.NewReaderSize(strings.NewReader(s), 16) }

func TestRepliesThatAreCutHugeOrForeignAreErrors(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want error // nil: any
	}{
		"nothing":                     {"", io.EOF},
		"a line that ends too early":  {`{"id":1,"result":{}}`, errReplyCut},
		"a line that is too long":     {`{"id":1,"result":"` + strings.Repeat("x", 200) + "\"}\n", errReplyTooLong},
		"an endless line":             {strings.Repeat("x", 1000), errReplyTooLong},
		"not JSON":                    {"hello\n", nil},
		"an empty line":               {"\n", nil},
		"no answer in it":             {`{"id":1}` + "\n", nil},
		"two answers in it":           {`{"id":1,"result":{},"error":{"code":4}}` + "\n", nil},
		"an id of another type":       {`{"id":"1","result":{}}` + "\n", nil},
		"an error of another type":    {`{"id":1,"error":"x"}` + "\n", nil},
		"more than one value":         {`{"id":1,"result":{}} {}` + "\n", nil},
		"a progress of another shape": {`{"id":1,"progress":[1]}` + "\n", nil},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := readReply(reader(c.text), 100)
			if err == nil {
				t.Fatalf("no error, reply %+v", got)
			}
			if c.want != nil && !errors.Is(err, c.want) {
				t.Errorf("error %v, want %v", err, c.want)
			}
		})
	}
}

func TestRepliesAreReadOneByOne(t *testing.T) {
	r := reader(`{"id":1,"progress":{"done":1,"total":2,"label":"a"}}` + "\n" + `{"id":1,"result":[1,2]}` + "\n" + `{"id":2,"error":{"code":5,"message":"m"}}` + "\n")
	first, err := readReply(r, 100)
	if err != nil || first.Progress == nil || first.Progress.Done != 1 {
		t.Fatalf("first %+v, %v", first, err)
	}
	second, err := readReply(r, 100)
	if err != nil || string(second.Result) != "[1,2]" {
		t.Fatalf("second %+v, %v", second, err)
	}
	third, err := readReply(r, 100)
	if err != nil || third.Error == nil || third.Error.Code != 5 || third.ID != 2 {
		t.Fatalf("third %+v, %v", third, err)
	}
}

func FuzzReply(f *testing.F) {
	for _, seed := range []string{
		`{"id":1,"result":{}}` + "\n", `{"id":1,"error":{"code":4,"kind":"load","details":[{"label":"a","value":"b"}]}}` + "\n",
		`{"id":2,"reached":"parsed"}` + "\n", `{"id":3,"reached":""}` + "\n", `{"id":9223372036854775807,"progress":{"done":1,"total":0,"label":""}}` + "\n", "\n", `{"id":1e3}`, "\xff\n", `{"id":1,"result":null}` + "\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		const limit = 1 << 12
		r := bufio.NewReaderSize(strings.NewReader(string(data)), 32)
		for lines := 0; ; lines++ {
			got, err := readReply(r, limit)
			if err == nil && lines >= strings.Count(string(data), "\n") {
				t.Fatalf("reply %d of %q, which has not so many whole lines", lines+1, data)
			}
			if errors.Is(err, io.EOF) || errors.Is(err, errReplyCut) || errors.Is(err, errReplyTooLong) {
				return
			}
			if err != nil {
				continue // the next line stands for itself
			}
			answers := 0
			for _, have := range []bool{got.Result != nil, got.Error != nil, got.Progress != nil, got.Reached != ""} {
				if have {
					answers++
				}
			}
			if answers != 1 {
				t.Fatalf("reply with %d answers from %q", answers, data)
			}
			if got.Result != nil && (!json.Valid(got.Result) || len(got.Result) > limit) {
				t.Fatalf("result %q is not JSON within the limit", got.Result)
			}
		}
	})
}
