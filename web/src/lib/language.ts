/** The language of the server's sentences: the browser's, until somebody chooses. */
export type Language = "en" | "zh";

export const LANGUAGES: Record<Language, string> = { en: "English", zh: "中文" };

const PLACE = "trainwatch-language";

function isLanguage(text: string | null | undefined): text is Language {
  return text === "en" || text === "zh";
}

/** What was chosen in this browser; null while nothing was. */
export function chosenLanguage(storage: Pick<Storage, "getItem"> = localStorage): Language | null {
  try {
    const text = storage.getItem(PLACE);
    return isLanguage(text) ? text : null;
  } catch {
    return null; // storage is forbidden
  }
}

/** Remembers a choice. */
export function chooseLanguage(language: Language, storage: Pick<Storage, "setItem"> = localStorage): void {
  try {
    storage.setItem(PLACE, language);
  } catch {
    // It holds until the page is loaded anew.
  }
}

/** The first of the browser's languages that sentences come in. */
export function preferredLanguage(languages: readonly string[]): Language {
  return languages.map((tag) => tag.toLowerCase().split("-")[0]).find(isLanguage) ?? "en";
}
